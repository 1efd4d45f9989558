// The operations on the CPU.
#include <cstring>

#include "tensorflow/core/platform/threadpool.h"
#include "tf/kernels.h"

namespace scalecom {
namespace {

class Cpu {
 public:
  explicit Cpu(OpKernelContext* ctx)
      : executor_{RunInPool, ctx->device()->tensorflow_cpu_worker_threads()->workers} {}

  static absl::Status Load(OpKernelConstruction*) { return absl::OkStatus(); }
  static const char* Text(int32_t status) { return scalecom_status_text(status); }

  absl::Status Zero(void* to, size_t bytes) const {
    std::memset(to, 0, bytes);
    return absl::OkStatus();
  }
  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  int64_t Workspace(const List& l, int32_t selection) const {
    return scalecom_offsets_workspace_cpu(l.tensors, l.count, selection);
  }
  int32_t Select(const List& l, int32_t selection, uint32_t* nonfinite, void* workspace,
                 int64_t bytes) const {
    return scalecom_offsets_select_cpu(l.tensors, l.count, selection, l.type, nonfinite, workspace,
                                       bytes, &executor_);
  }
  int32_t Compensate(const List& l, uint32_t* nonfinite) const {
    return scalecom_gradients_compensate_cpu(l.tensors, l.count, l.type, nonfinite, &executor_);
  }
  int32_t Gather(const List& l, int32_t wire) const {
    return scalecom_values_gather_cpu(l.tensors, l.count, wire, l.limit, &executor_);
  }
  int32_t WriteFlag(const uint32_t* nonfinite, int32_t wire, void* flag) const {
    return scalecom_flag_write_cpu(nonfinite, wire, flag);
  }
  int32_t Filter(const List& l, float beta, const uint8_t* finite) const {
    return scalecom_residuals_filter_cpu(l.tensors, l.count, beta, finite, &executor_);
  }
  int32_t Scatter(const List& l, int32_t wire) const {
    return scalecom_outputs_scatter_cpu(l.tensors, l.count, l.type, wire, &executor_);
  }
  int32_t Descend(const std::vector<scalecom_slices>& slices, const float* learning_rate) const {
    return scalecom_variables_descend_cpu(slices.data(), static_cast<int64_t>(slices.size()),
                                          learning_rate, &executor_);
  }

 private:
  // Runs the core's tasks in TensorFlow's pool of this device.
  static void RunInPool(void* state, int64_t tasks, scalecom_task task, void* context) {
    static_cast<tensorflow::thread::ThreadPool*>(state)->ParallelFor(
        tasks, tensorflow::thread::ThreadPool::SchedulingParams::Fixed(1),
        [task, context](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) task(context, i);
        });
  }

  scalecom_executor executor_;
};

#define REGISTER(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), kernel<Cpu>)

REGISTER("ScalecomCompensate", CompensateKernel);
REGISTER("ScalecomGather", GatherKernel);
REGISTER("ScalecomFilter", FilterKernel);
REGISTER("ScalecomScatter", ScatterKernel);
REGISTER("ScalecomDescend", DescendKernel);
REGISTER("ScalecomSubtract", SubtractKernel);

}  // namespace
}  // namespace scalecom
