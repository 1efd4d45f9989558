// A plain radix select for bench_cuda to compare with: the indices of the k largest |p|, in no
// order, ties as they come. Three passes over all of p count by 11 bits of the key, among elements
// that agree with the digits found before; a fourth copies what reaches the k-th key.
#ifndef SCALECOM_BENCH_RADIX_SELECT_CUH_
#define SCALECOM_BENCH_RADIX_SELECT_CUH_

#include <cuda_runtime.h>
#include <stdint.h>

#include "core/cuda/launch.cuh"

namespace radix_select {

constexpr int kThreads = 256;
constexpr int kVector = 4;
constexpr int kVectors = 8;  // of a thread, all loaded before the first is used
constexpr int kTile = kThreads * kVector * kVectors;
constexpr int kPasses = 3;
constexpr int kBins = 1 << 11;

// Digits are bits [shift, shift + 11) of the 31. The last has two bits of the one before in it.
__device__ inline int shift_of(int pass) { return max(20 - 11 * pass, 0); }

struct State {
  uint32_t bins[kPasses][kBins];
  uint32_t key;     // the k-th largest, as far as it is known
  uint32_t wanted;  // how many of those that agree with it so far
  uint32_t above;   // indices written of keys above it
  uint32_t equal;   // and of keys equal to it
};

// A thread's share of a tile: calls visit(index, key) for each element.
struct Share {
  uint4 bits[kVectors];
  int64_t first;
  int64_t elements;

  __device__ Share(const float* p, int64_t n)
      : first(int64_t{blockIdx.x} * kTile + threadIdx.x * kVector), elements(n) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = first + v * kThreads * kVector;
      if (at + kVector <= n) bits[v] = *reinterpret_cast<const uint4*>(p + at);
    }
    // The last vector may have fewer.
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = first + v * kThreads * kVector;
      if (at + kVector <= n || at >= n) continue;
      const uint32_t* last = reinterpret_cast<const uint32_t*>(p + at);
      bits[v] = {last[0], at + 1 < n ? last[1] : 0, at + 2 < n ? last[2] : 0, 0};
    }
  }

  template <typename Visit>
  __device__ void each(const Visit& visit) const {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = first + v * kThreads * kVector;
      const uint32_t four[kVector] = {bits[v].x, bits[v].y, bits[v].z, bits[v].w};
      for (int i = 0; i < kVector; ++i) {
        if (at + i < elements) visit(static_cast<uint32_t>(at + i), four[i] & 0x7fffffffu);
      }
    }
  }
};

static __global__ void __launch_bounds__(kThreads)
    count(const float* p, int64_t n, State* state, int pass) {
  __shared__ uint32_t bins[kBins];
  for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  const Share share(p, n);
  const uint32_t known = state->key;
  const int shift = shift_of(pass);
  const int agreed = pass == 0 ? 31 : shift_of(pass - 1);
  __syncthreads();
  share.each([&](uint32_t, uint32_t key) {
    if ((key ^ known) >> agreed == 0) atomicAdd(&bins[key >> shift & (kBins - 1)], 1u);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) {
    if (bins[i] != 0) atomicAdd(&state->bins[pass][i], bins[i]);
  }
}

// One block: the bin, counted from the top, in which the last wanted element lies.
static __global__ void __launch_bounds__(kThreads) descend(State* state, int pass, uint32_t k) {
  constexpr int kShare = kBins / kThreads;
  __shared__ uint32_t sums[kThreads];
  const int thread = threadIdx.x;
  const uint32_t wanted = pass == 0 ? k : state->wanted;
  const int top = kBins - 1 - thread * kShare;
  uint32_t own = 0;
  for (int i = 0; i < kShare; ++i) own += state->bins[pass][top - i];
  sums[thread] = own;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const uint32_t other = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += other;
    __syncthreads();
  }
  const uint32_t before = sums[thread] - own;
  if (before >= wanted || before + own < wanted) return;
  uint32_t remaining = wanted - before;
  int bin = top;
  for (; remaining > state->bins[pass][bin]; --bin) remaining -= state->bins[pass][bin];
  state->key |= static_cast<uint32_t>(bin) << shift_of(pass);
  state->wanted = remaining;
}

// Blocks ask for room, one request each.
static __global__ void __launch_bounds__(kThreads)
    copy(const float* p, int64_t n, State* state, uint32_t k, uint32_t* indices) {
  __shared__ uint32_t found[2];  // above the key, and equal to it
  __shared__ uint32_t start[2];
  if (threadIdx.x == 0) found[0] = found[1] = 0;
  const Share share(p, n);
  const uint32_t bound = state->key;
  const uint32_t ties = state->wanted;
  __syncthreads();
  uint32_t above = 0;
  uint32_t equal = 0;
  share.each([&](uint32_t, uint32_t key) {
    above += key > bound;
    equal += key == bound;
  });
  above = above > 0 ? atomicAdd(&found[0], above) : 0;
  equal = equal > 0 ? atomicAdd(&found[1], equal) : 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    start[0] = atomicAdd(&state->above, found[0]);
    start[1] = atomicAdd(&state->equal, found[1]);
  }
  __syncthreads();
  above += start[0];
  equal += start[1];
  share.each([&](uint32_t index, uint32_t key) {
    if (key > bound) indices[above++] = index;
    if (key == bound && equal++ < ties) indices[k - ties + equal - 1] = index;
  });
}

// Queues it all. p is aligned to a vector and has no NaN; 1 <= k <= n < 2^32.
inline cudaError_t run(const float* p, int64_t n, uint32_t k, State* state, uint32_t* indices) {
  const unsigned blocks = static_cast<unsigned>((n + kTile - 1) / kTile);
  cudaError_t error = cudaMemsetAsync(state, 0, sizeof *state, nullptr);
  const auto queue = [&](auto kernel, unsigned size, const auto&... arguments) {
    if (error != cudaSuccess) return;
    error = scalecom::queue_kernel(kernel, size, kThreads, nullptr, arguments...);
  };
  for (int pass = 0; pass < kPasses; ++pass) {
    queue(count, blocks, p, n, state, pass);
    queue(descend, 1, state, pass, k);
  }
  queue(copy, blocks, p, n, state, k, indices);
  return error;
}

}  // namespace radix_select

#endif  // SCALECOM_BENCH_RADIX_SELECT_CUH_
