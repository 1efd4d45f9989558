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
  int64_t Workspace(const List& l, int32_t selection) const {
    return scalecom_offsets_workspace_cuda(l.tensors, l.count, selection);
  }
  int32_t Select(const List& l, int32_t selection, uint32_t* nonfinite, void* workspace,
                 int64_t bytes) const {
    return scalecom_offsets_select_cuda(l.tensors, l.count, selection, l.type, nonfinite, workspace,
                                        bytes, stream_);
  }
  int32_t Check(const List& l, uint32_t* nonfinite) const {
    return scalecom_compensated_check_cuda(l.tensors, l.count, l.type, nonfinite, stream_);
  }
  int32_t Gather(const List& l, int32_t wire) const {
    return scalecom_values_gather_cuda(l.tensors, l.count, l.type, wire, l.limit, stream_);
  }
  int32_t WriteFlag(const uint32_t* nonfinite, int32_t wire, void* flag) const {
    return scalecom_flag_write_cuda(nonfinite, wire, flag, stream_);
  }
  int32_t Apply(const List& l, int32_t wire, float beta) const {
    return scalecom_updates_apply_cuda(l.tensors, l.count, l.type, wire, l.limit, beta, stream_);
  }

 protected:
  explicit CudaDevice(void* stream) : stream_(stream) {}

 private:
  void* stream_;
};

}  // namespace scalecom

#endif  // SCALECOM_TF_CUDA_DEVICE_H_
