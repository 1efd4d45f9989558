// The TensorFlow operations over the CUDA kernels, emulated on the CPU (see cuda_on_cpu): kernels
// with the label "emulated" for the operations of the op library, which is loaded first. All but
// TensorFlow's stream is what runs on a GPU.
#include <cstring>
#include <mutex>

#include "tf/cuda_device.h"

namespace scalecom {
namespace {

class Emulated : public CudaDevice {
 public:
  explicit Emulated(OpKernelContext*) : CudaDevice(/*stream=*/nullptr), turn_(EmulatorMutex()) {}

  static absl::Status Load(OpKernelConstruction*) { return absl::OkStatus(); }

  absl::Status Zero(void* to, size_t bytes) const {
    std::memset(to, 0, bytes);
    return absl::OkStatus();
  }
  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }

 private:
  // There is one emulator, and TensorFlow runs operations side by side.
  static std::mutex& EmulatorMutex() {
    static std::mutex mutex;
    return mutex;
  }

  std::lock_guard<std::mutex> turn_;
};

#define REGISTER(name, kernel)                                                         \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).Label("emulated"), \
                          kernel<Emulated>)

REGISTER("ScalecomCompensate", CompensateKernel);
REGISTER("ScalecomGather", GatherKernel);
REGISTER("ScalecomFilter", FilterKernel);
REGISTER("ScalecomScatter", ScatterKernel);
REGISTER("ScalecomDescend", DescendKernel);
REGISTER("ScalecomSubtract", SubtractKernel);

}  // namespace
}  // namespace scalecom
