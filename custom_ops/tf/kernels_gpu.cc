// The operations on a GPU: everything is queued on TensorFlow's stream, and nothing waited for.
//
// Buffers come from TensorFlow's allocator, which gives memory back in the order of the stream:
// a temporary may be released while the work that uses it is still queued.
#include "tf/cuda_device.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace scalecom {
namespace {

class Gpu : public CudaDevice {
 public:
  explicit Gpu(OpKernelContext* ctx) : Gpu(ctx->op_device_context()->stream()) {}

  // CUDA otherwise loads a kernel at its first launch, and may wait for all that runs on the
  // device: for ever, if that is NCCL, and waits for another device that this thread comes to
  // later.
  static absl::Status Load(OpKernelConstruction* ctx) {
    const auto* device = ctx->device()->tensorflow_accelerator_device_info();
    const auto current = device->stream->parent()->Activate();
    int32_t binary, ptx;
    TF_RETURN_IF_ERROR(
        ToStatus<Gpu>(scalecom_kernels_load_cuda(&binary, &ptx), "be loaded on the GPU"));
    VLOG(1) << "tf_scalecom: GPU " << device->gpu_id << " runs kernels of compute capability "
            << binary / 10 << "." << binary % 10 << ", made from PTX of " << ptx / 10 << "."
            << ptx % 10;
    return absl::OkStatus();
  }

  absl::Status Zero(void* to, size_t bytes) const {
    if (bytes == 0) return absl::OkStatus();
    stream_executor::DeviceAddressBase place(to, bytes);
    return stream_->MemZero(&place, bytes);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    if (bytes == 0) return absl::OkStatus();
    stream_executor::DeviceAddressBase place(to, bytes);
    return stream_->Memcpy(
        &place, stream_executor::DeviceAddressBase(const_cast<void*>(from), bytes), bytes);
  }

 private:
  explicit Gpu(stream_executor::Stream* stream)
      : CudaDevice(stream->platform_specific_handle().stream), stream_(stream) {}

  stream_executor::Stream* stream_;
};

// Words stay in device memory. TensorFlow moves int32 that passes a tf.cond on a GPU to the host
// and back, so the broadcast sends their bits as float32.
#define REGISTER(name, kernel, ...) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_GPU) __VA_ARGS__, kernel<Gpu>)

REGISTER("ScalecomCompensate", CompensateKernel, .HostMemory("residuals").HostMemory("leads"));
REGISTER("ScalecomGather", GatherKernel);
REGISTER("ScalecomFilter", FilterKernel, .HostMemory("residuals"));
REGISTER("ScalecomScatter", ScatterKernel);
REGISTER("ScalecomDescend", DescendKernel, .HostMemory("variables"));
REGISTER("ScalecomSubtract", SubtractKernel);

}  // namespace
}  // namespace scalecom
