// What the first CUDA device is and which kernels it runs: one line. Where it cannot run them one
// line says why, and the exit code is 77.
#include <cuda_runtime.h>
#include <stdio.h>

#include "scalecom/scalecom_cuda.h"

namespace {

// For a list of tensors as a kernel's parameter.
constexpr int kOldestDriver = 12010;
constexpr int kOldestCapability = 75;

int major_of(int version) { return version / 1000; }
int minor_of(int version) { return version % 1000 / 10; }

}  // namespace

int main() {
  int driver = 0;
  int devices = 0;
  cudaDriverGetVersion(&driver);
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (driver == 0) {
    printf("expected an NVIDIA driver; received none (no libcuda.so.1): install one\n");
    return 77;
  }
  if (driver < kOldestDriver || major_of(driver) < CUDART_VERSION / 1000) {
    const int oldest = CUDART_VERSION / 1000 > 12 ? CUDART_VERSION / 1000 * 1000 : kOldestDriver;
    printf("expected a driver that knows CUDA %d.%d; received one that knows %d.%d: update it\n",
           major_of(oldest), minor_of(oldest), major_of(driver), minor_of(driver));
    return 77;
  }
  if (error != cudaSuccess || devices == 0) {
    printf("expected a GPU; received none (%s): look at nvidia-smi\n",
           error == cudaSuccess ? "the driver counts 0" : cudaGetErrorString(error));
    return 77;
  }
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    printf("expected the GPU's properties; received: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 77;
  }
  const int capability = properties.major * 10 + properties.minor;
  if (capability < kOldestCapability) {
    printf("expected compute capability %d.%d or later; received %s with %d.%d: take another GPU\n",
           kOldestCapability / 10, kOldestCapability % 10, properties.name, properties.major,
           properties.minor);
    return 77;
  }
  int32_t binary = 0;
  int32_t ptx = 0;
  const int32_t status = scalecom_kernels_load_cuda(&binary, &ptx);
  if (status != SCALECOM_OK) {
    printf("expected kernels that load on %s; received: %s\n", properties.name,
           scalecom_status_text_cuda(status));
    return 1;
  }
  printf(
      "%s, compute capability %d.%d, %d multiprocessors, %.0f GiB; CUDA %d.%d, the driver knows "
      "%d.%d; kernels: ",
      properties.name, properties.major, properties.minor, properties.multiProcessorCount,
      static_cast<double>(properties.totalGlobalMem) / (1 << 30), major_of(CUDART_VERSION),
      minor_of(CUDART_VERSION), major_of(driver), minor_of(driver));
  if (binary == ptx) {
    printf("machine code for %d.%d\n", binary / 10, binary % 10);
  } else {
    printf("PTX for %d.%d, compiled by the driver for %d.%d\n", ptx / 10, ptx % 10, binary / 10,
           binary % 10);
  }
  return 0;
}
