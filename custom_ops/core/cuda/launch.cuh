// A list of tensors, or of slices of variables, as the parameter of one launch.
#ifndef SCALECOM_CORE_CUDA_LAUNCH_CUH_
#define SCALECOM_CORE_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "core/cuda/device.cuh"

namespace scalecom {
inline namespace cuda {

constexpr int kListTensors = Policy::kListTensors;

// A parameter of the kernel: no table to allocate, copy or keep alive. Block b works on unit b -
// first[i] of its tensor i.
template <typename Tensor>
struct ListOf {
  int64_t first[kListTensors + 1];
  Tensor tensors[kListTensors];
  int32_t count;
};
using List = ListOf<scalecom_tensor>;
static_assert(sizeof(List) + 64 <= 32764, "a launch takes at most 32,764 bytes");

// Queues a kernel. Without nvcc it runs there and then: tests/cuda_on_cpu has a function of this
// name that runs the kernel's threads on the CPU.
#if defined(__CUDACC__)
template <typename... Parameters, typename... Arguments>
cudaError_t queue_kernel(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                         void* stream, const Arguments&... arguments) {
  static_assert((std::is_same_v<Parameters, Arguments> && ...),
                "arguments go as they lie in memory");
  void* places[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                          places, 0, static_cast<cudaStream_t>(stream));
}
#endif

// CUDA's error as a status. It is cleared, lest somebody's next look at CUDA's last error finds it.
inline int32_t status_of(cudaError_t error) {
  if (error == cudaSuccess) return SCALECOM_OK;
  cudaGetLastError();
  return SCALECOM_DEVICE_ERROR + static_cast<int32_t>(error);
}

template <typename... Parameters, typename... Arguments>
int32_t start_kernel(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, void* stream,
                     const Arguments&... arguments) {
  return status_of(queue_kernel(kernel, blocks, threads, stream, arguments...));
}

// Loads kernels on the current device.
template <typename... Kernels>
int32_t load_kernels(cudaFuncAttributes* attributes, Kernels*... kernels) {
  for (const void* kernel : {reinterpret_cast<const void*>(kernels)...}) {
    const int32_t status = status_of(cudaFuncGetAttributes(attributes, kernel));
    if (status != SCALECOM_OK) return status;
  }
  return SCALECOM_OK;
}

// Calls function(T{}), which returns a status, for each type of gradients.
template <typename Function>
int32_t for_gradient_types(const Function& function) {
  for (const ElementType& type : kElementTypes) {
    if (!type.gradient) continue;
    const int32_t status = with_gradient_type<CudaElements>(type.number, function);
    if (status != SCALECOM_OK) return status;
  }
  return SCALECOM_OK;
}

struct Unit {
  int tensor;
  int64_t index;
};

template <typename Tensor>
__device__ __forceinline__ Unit find_unit(const ListOf<Tensor>& list) {
  const int64_t unit = blockIdx.x;
  const int tensor = static_cast<int>(unit_owner(list.first, list.count, unit));
  return {tensor, unit - list.first[tensor]};
}

// Splits tensors into lists; calls launch(list, blocks), which returns a status, for each that has
// work. units(t) is the number of blocks for a tensor.
template <typename Tensor, typename Units, typename Launch>
int32_t launch_lists(const Tensor* tensors, int64_t count, const Units& units,
                     const Launch& launch) {
  for (int64_t start = 0; start < count; start += kListTensors) {
    ListOf<Tensor> list;
    list.count = static_cast<int32_t>(minimum(kListTensors, count - start));
    list.first[0] = 0;
    for (int i = 0; i < list.count; ++i) {
      list.tensors[i] = tensors[start + i];
      list.first[i + 1] = list.first[i] + units(tensors[start + i]);
    }
    const int64_t blocks = list.first[list.count];
    if (blocks == 0) continue;
    if (blocks > INT32_MAX) return SCALECOM_INVALID_ARGUMENT;
    const int32_t status = launch(list, static_cast<unsigned>(blocks));
    if (status != SCALECOM_OK) return status;
  }
  return SCALECOM_OK;
}

}  // namespace cuda
}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_LAUNCH_CUH_
