// The core's CUDA functions, as the kernels call them.
#ifndef SCALECOM_TF_CUDA_DEVICE_H_
#define SCALECOM_TF_CUDA_DEVICE_H_

#include "scalecom/scalecom_cuda.h"
#include "tf/kernels.h"

namespace scalecom {

// The list of tensors is in host memory: the core passes it by value, as a parameter of the
// launch, so nothing of it need outlive the call.
class CudaDevice {
 public:
  static const char* Text(int32_t status) { return scalecom_status_text_cuda(status); }

  int64_t Workspace(const List& l, int32_t selection) const {
    return scalecom_offsets_workspace_cuda(l.tensors, l.count, selection);
  }
  int32_t Select(const List& l, int32_t selection, uint32_t* nonfinite, void* workspace,
                 int64_t bytes) const {
    return scalecom_offsets_select_cuda(l.tensors, l.count, selection, l.type, nonfinite, workspace,
                                        bytes, stream_);
  }
  int32_t Compensate(const List& l, uint32_t* nonfinite) const {
    return scalecom_gradients_compensate_cuda(l.tensors, l.count, l.type, nonfinite, stream_);
  }
  int32_t Gather(const List& l, int32_t wire) const {
    return scalecom_values_gather_cuda(l.tensors, l.count, wire, l.limit, stream_);
  }
  int32_t WriteFlag(const uint32_t* nonfinite, int32_t wire, void* flag) const {
    return scalecom_flag_write_cuda(nonfinite, wire, flag, stream_);
  }
  int32_t Filter(const List& l, float beta, const uint8_t* finite) const {
    return scalecom_residuals_filter_cuda(l.tensors, l.count, beta, finite, stream_);
  }
  int32_t Scatter(const List& l, int32_t wire) const {
    return scalecom_outputs_scatter_cuda(l.tensors, l.count, l.type, wire, stream_);
  }
  int32_t Descend(const std::vector<scalecom_slices>& slices, const float* learning_rate) const {
    return scalecom_variables_descend_cuda(slices.data(), static_cast<int64_t>(slices.size()),
                                           learning_rate, stream_);
  }

 protected:
  explicit CudaDevice(void* stream) : stream_(stream) {}

 private:
  void* stream_;
};

}  // namespace scalecom

#endif  // SCALECOM_TF_CUDA_DEVICE_H_
