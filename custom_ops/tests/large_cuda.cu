// A tensor past 2^31 elements on a CUDA device, against plain kernels that compute what each
// element must be from its index. Needs 27 GB of device memory.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "scalecom/scalecom_cuda.h"

namespace {

constexpr int64_t kElements = (int64_t{1} << 31) + 1000003;
constexpr int64_t kChunk = 1000;
constexpr int64_t kKeep = 3;
constexpr int64_t kTailKeep = 1;  // of the last 651 elements
constexpr float kBeta = 0.5f;

void must(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "FAILED: %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
  exit(1);
}

__device__ float noise(uint64_t i, uint64_t salt) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + salt;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 29;
  return static_cast<float>(static_cast<int64_t>(x & 0xffffff) - 0x800000) * 1e-7f;
}

__device__ __nv_bfloat16 gradient_at(int64_t i) { return __float2bfloat16_rn(noise(i, 1)); }
__device__ float residual_at(int64_t i) { return noise(i, 2); }
__device__ float compensated_at(int64_t i) {
  return __fadd_rn(residual_at(i), __bfloat162float(gradient_at(i)));
}

template <typename Function>
__global__ void each(int64_t n, Function function) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) function(i);
}

template <typename Function>
void for_all(int64_t n, Function function) {
  each<<<4096, 256>>>(n, function);
  must(cudaDeviceSynchronize() == cudaSuccess, "kernel");
}

template <typename T>
T* allocate(int64_t n) {
  void* p = nullptr;
  must(cudaMalloc(&p, static_cast<size_t>(n) * sizeof(T)) == cudaSuccess, "cudaMalloc");
  return static_cast<T*>(p);
}

}  // namespace

int main() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess || free_bytes < 27ull << 30) {
    printf("skipped: no CUDA device with 27 GiB free\n");
    return 77;
  }
  scalecom_tensor t = {};
  t.elements = kElements;
  t.chunk_size = kChunk;
  t.chunk_keep = kKeep;
  t.tail_keep = kTailKeep;
  t.offset_bytes = 2;
  const int64_t kept = scalecom_tensor_kept(&t);
  __nv_bfloat16* gradient = allocate<__nv_bfloat16>(kElements);
  __nv_bfloat16* output = allocate<__nv_bfloat16>(kElements);
  float* residual = allocate<float>(kElements);
  uint16_t* offsets = allocate<uint16_t>(kept);
  float* values = allocate<float>(kept);
  uint32_t* flags = allocate<uint32_t>(2);  // nonfinite, wrong
  t.gradient = gradient;
  t.output = output;
  t.residual = residual;
  float* compensated = allocate<float>(kElements);
  t.compensated = compensated;
  t.offsets = offsets;
  t.values = values;
  t.reduced = values;
  must(cudaMemset(flags, 0, 8) == cudaSuccess, "memset");
  for_all(kElements, [=] __device__(int64_t i) {
    gradient[i] = gradient_at(i);
    residual[i] = residual_at(i);
  });

  must(scalecom_offsets_select_cuda(&t, 1, SCALECOM_CHUNK, SCALECOM_BFLOAT16, flags, nullptr, 0,
                                    nullptr) == SCALECOM_OK,
       "select");
  must(scalecom_values_gather_cuda(&t, 1, SCALECOM_FLOAT32, INFINITY, nullptr) == SCALECOM_OK,
       "gather");
  uint8_t* finite = allocate<uint8_t>(1);
  must(cudaMemset(finite, 1, 1) == cudaSuccess, "memset");
  must(scalecom_residuals_filter_cuda(&t, 1, kBeta, finite, nullptr) == SCALECOM_OK, "filter");
  must(scalecom_outputs_scatter_cuda(&t, 1, SCALECOM_BFLOAT16, SCALECOM_FLOAT32, nullptr) ==
           SCALECOM_OK,
       "scatter");
  must(cudaDeviceSynchronize() == cudaSuccess, "core");

  uint32_t* wrong = flags + 1;
  for_all((kElements + kChunk - 1) / kChunk, [=] __device__(int64_t chunk) {
    const int64_t start = chunk * kChunk;
    const int64_t length = min(kChunk, kElements - start);
    const int64_t keep = length == kChunk ? kKeep : kTailKeep;
    float before = INFINITY;
    int64_t previous = -1;
    for (int64_t rank = 0; rank < keep; ++rank) {
      // The largest below (before, previous) in the promised order.
      float best = -1.0f;
      int64_t where = 0;
      for (int64_t i = 0; i < length; ++i) {
        const float size = fabsf(compensated_at(start + i));
        const bool later = size < before || (size == before && i > previous);
        if (later && size > best) {
          best = size;
          where = i;
        }
      }
      const int64_t entry = chunk * kKeep + rank;
      if (offsets[entry] != where || values[entry] != compensated_at(start + where)) *wrong = 1;
      before = best;
      previous = where;
    }
  });
  for_all(kElements, [=] __device__(int64_t i) {
    const int64_t chunk = i / kChunk;
    const int64_t keep = kElements - chunk * kChunk >= kChunk ? kKeep : kTailKeep;
    bool selected = false;
    for (int64_t j = 0; j < keep; ++j) selected |= offsets[chunk * kKeep + j] == i % kChunk;
    const float unsent = selected ? 0.0f : compensated_at(i);
    const float want = __fadd_rn(__fmul_rn(1.0f - kBeta, residual_at(i)), __fmul_rn(kBeta, unsent));
    const float dense = selected ? compensated_at(i) : 0.0f;
    if (compensated[i] != want) *wrong = 1;
    if (__bfloat162float(output[i]) != __bfloat162float(__float2bfloat16_rn(dense))) *wrong = 1;
  });
  uint32_t result[2];
  must(cudaMemcpy(result, flags, 8, cudaMemcpyDeviceToHost) == cudaSuccess, "memcpy");
  must(result[0] == 0, "finite");
  must(result[1] == 0, "an element is wrong");
  printf("%lld elements are right\n", static_cast<long long>(kElements));
  return 0;
}
