// Exact selection on CUDA: the k largest |p| of each tensor, by counting (see radix.h).
//
// Every launch covers the whole list: three times count and descend, then tally the tiles,
// scan the tallies, and emit the indices in order.
#include "core/cuda/launch.cuh"
#include "core/cuda/select_exact.h"
#include "core/radix.h"
#include "core/validate.h"

namespace scalecom {
namespace {

constexpr int kVectors = Policy::Exact::kVectors;
constexpr int kStep = kThreads * kVector;  // elements that a block takes at a time
constexpr int kTile = kStep * kVectors;

SCALECOM_HD int64_t tile_count(const scalecom_tensor& t) { return ceil_div(t.elements, kTile); }

// Of one tensor. `key` grows digit by digit into the k-th largest; `ties` is how many of
// the elements that agree with it so far are kept.
struct State {
  uint32_t bins[kRadixBins];
  int64_t ties;
  int32_t key;
  int32_t unused;
};

// Elements of a tile above the key and equal to it; after the scan, of all tiles before.
struct Tally {
  uint32_t above;
  uint32_t equal;
};

struct Workspace {
  State* states;   // one a tensor of the list
  Tally* tallies;  // one a block of the list
};

// First element of this thread's vector of step `step` of a tile.
__device__ __forceinline__ int64_t vector_start(int64_t tile, int step) {
  return tile * kTile + step * kStep + threadIdx.x * kVector;
}

// Keys of a vector of p, which the first pass has made; -1 behind the end.
struct Keys {
  const float* compensated;
  int64_t elements;
  bool aligned;

  __device__ explicit Keys(const scalecom_tensor& t)
      : compensated(t.compensated), elements(t.elements), aligned(vector_aligned(compensated)) {}

  __device__ __forceinline__ int64_t load(int64_t tile, int step, int32_t (&keys)[kVector]) const {
    const int64_t at = vector_start(tile, step);
    if (aligned && at + kVector <= elements) {
      const Vector p = load_vector(compensated + at);
#pragma unroll
      for (int i = 0; i < kVector; ++i) keys[i] = key_of(p.lane[i]);
      return at;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      keys[i] = at + i < elements ? key_of(compensated[at + i]) : -1;
    }
    return at;
  }
};

// Counts what a block's threads find, each calling keys_of(step, keys) for its vectors, and
// returns the highest.
template <typename KeysOf>
__device__ __forceinline__ int32_t count_tile(State& state, RadixLevel radix,
                                              const KeysOf& keys_of) {
  __shared__ uint32_t bins[1 << 11];
  for (int i = threadIdx.x; i < 1 << radix.bits; i += kThreads) bins[i] = 0;
  __syncthreads();
  const int32_t prefix = state.key;
  int32_t highest = 0;
#pragma unroll Policy::Exact::kUnroll
  for (int step = 0; step < kVectors; ++step) {
    int32_t keys[kVector];
    keys_of(step, keys);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      highest = max(highest, keys[i]);
      if (keys[i] >= 0 && radix_agrees(radix, keys[i], prefix)) {
        atomicAdd(&bins[radix_digit(radix, keys[i])], 1u);
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 1 << radix.bits; i += kThreads) {
    if (bins[i] != 0) atomicAdd(&state.bins[radix.first + i], bins[i]);
  }
  return highest;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    count_first(const List __grid_constant__ list, Workspace work, uint32_t* nonfinite) {
  const Unit unit = find_unit(list);
  const Compensation<T> p(list.tensors[unit.tensor]);
  const int32_t highest =
      count_tile(work.states[unit.tensor], radix_level(0), [&](int step, int32_t (&keys)[kVector]) {
        p.keys(vector_start(unit.index, step), 0, p.elements, keys);
      });
  raise_flag(nonfinite, highest);
}

__global__ void __launch_bounds__(kThreads)
    count_next(const List __grid_constant__ list, Workspace work, int level) {
  const Unit unit = find_unit(list);
  const Keys p(list.tensors[unit.tensor]);
  count_tile(work.states[unit.tensor], radix_level(level),
             [&](int step, int32_t (&keys)[kVector]) { p.load(unit.index, step, keys); });
}

// One warp a tensor: the bin, counted from the top, in which the last kept element lies.
__global__ void descend(const List __grid_constant__ list, Workspace work, int level) {
  const scalecom_tensor& t = list.tensors[blockIdx.x];
  if (t.elements == 0) return;
  State& state = work.states[blockIdx.x];
  const RadixLevel radix = radix_level(level);
  const int lane = threadIdx.x;
  const int share = (1 << radix.bits) / kWarp;
  const int64_t wanted = level == 0 ? t.chunk_keep : state.ties;
  const uint32_t* top = state.bins + radix.first + (1 << radix.bits) - 1 - lane * share;
  int64_t inside = 0;
  for (int i = 0; i < share; ++i) inside += top[-i];
  int64_t through = inside;  // elements in this lane's bins and those above
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, through, step);
    if (lane >= step) through += other;
  }
  int64_t remaining = wanted - (through - inside);
  if (remaining > 0 && remaining <= inside) {
    int i = 0;
    for (; remaining > top[-i]; ++i) remaining -= top[-i];
    state.key |= static_cast<int32_t>(top - i - (state.bins + radix.first)) << radix.shift;
    state.ties = remaining;
  }
}

__device__ __forceinline__ uint32_t warp_sum(uint32_t v) { return __reduce_add_sync(kAllLanes, v); }

__global__ void __launch_bounds__(kThreads)
    tally(const List __grid_constant__ list, Workspace work) {
  __shared__ Tally sums;
  if (threadIdx.x == 0) sums = {0, 0};
  __syncthreads();
  const Unit unit = find_unit(list);
  const Keys p(list.tensors[unit.tensor]);
  const int32_t threshold = work.states[unit.tensor].key;
  uint32_t above = 0;
  uint32_t equal = 0;
#pragma unroll Policy::Exact::kUnroll
  for (int step = 0; step < kVectors; ++step) {
    int32_t keys[kVector];
    p.load(unit.index, step, keys);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      above += keys[i] > threshold;
      equal += keys[i] == threshold;
    }
  }
  above = warp_sum(above);
  equal = warp_sum(equal);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&sums.above, above);
    atomicAdd(&sums.equal, equal);
  }
  __syncthreads();
  if (threadIdx.x == 0) work.tallies[blockIdx.x] = sums;
}

// Sum of the values of the threads before this one, and of all: of two counts at once.
__device__ __forceinline__ Tally block_scan(Tally mine, Tally* all) {
  __shared__ Tally warps[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  Tally through = mine;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t above = __shfl_up_sync(kAllLanes, through.above, step);
    const uint32_t equal = __shfl_up_sync(kAllLanes, through.equal, step);
    if (lane >= step) {
      through.above += above;
      through.equal += equal;
    }
  }
  if (lane == kWarp - 1) warps[warp] = through;
  __syncthreads();
  Tally before = {through.above - mine.above, through.equal - mine.equal};
  *all = {0, 0};
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) {
      before.above += warps[w].above;
      before.equal += warps[w].equal;
    }
    all->above += warps[w].above;
    all->equal += warps[w].equal;
  }
  __syncthreads();
  return before;
}

// One block a tensor: each tile's tally becomes the sum of those before it.
__global__ void __launch_bounds__(kThreads)
    scan(const List __grid_constant__ list, Workspace work) {
  const int64_t end = list.first[blockIdx.x + 1];
  Tally total = {0, 0};
  for (int64_t start = list.first[blockIdx.x]; start < end; start += kThreads) {
    const int64_t i = start + threadIdx.x;
    const Tally mine = i < end ? work.tallies[i] : Tally{0, 0};
    Tally all;
    const Tally before = block_scan(mine, &all);
    if (i < end) {
      work.tallies[i] = {total.above + before.above, total.equal + before.equal};
    }
    total.above += all.above;
    total.equal += all.equal;
  }
}

__global__ void __launch_bounds__(kThreads)
    emit(const List __grid_constant__ list, Workspace work) {
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Keys p(t);
  const int32_t threshold = work.states[unit.tensor].key;
  const uint32_t ties = static_cast<uint32_t>(work.states[unit.tensor].ties);
  Tally total = work.tallies[blockIdx.x];
  for (int step = 0; step < kVectors; ++step) {
    int32_t keys[kVector];
    const int64_t at = p.load(unit.index, step, keys);
    Tally mine = {0, 0};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      mine.above += keys[i] > threshold;
      mine.equal += keys[i] == threshold;
    }
    Tally all;
    const Tally before = block_scan(mine, &all);
    uint32_t above = total.above + before.above;
    uint32_t equal = total.equal + before.equal;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (keys[i] > threshold || (keys[i] == threshold && equal < ties)) {
        offset_store(t, above + min(equal, ties), static_cast<uint32_t>(at + i));
      }
      above += keys[i] > threshold;
      equal += keys[i] == threshold;
    }
    total.above += all.above;
    total.equal += all.equal;
  }
}

template <typename T>
int32_t launch_exact(const scalecom_tensor* tensors, int64_t count, uint32_t* nonfinite,
                     void* workspace, void* stream) {
  Workspace work = {static_cast<State*>(workspace),
                    reinterpret_cast<Tally*>(static_cast<State*>(workspace) + count)};
  if (cudaMemsetAsync(workspace, 0, static_cast<size_t>(count) * sizeof(State),
                      static_cast<cudaStream_t>(stream)) != cudaSuccess) {
    return SCALECOM_DEVICE_ERROR;
  }
  return launch_lists(tensors, count, tile_count, [&](const List& list, unsigned blocks) {
    const unsigned tensors_here = static_cast<unsigned>(list.count);
    for (int level = 0; level < kRadixLevelCount; ++level) {
      if (level == 0) {
        start_kernel(count_first<T>, blocks, kThreads, stream, list, work, nonfinite);
      } else {
        start_kernel(count_next, blocks, kThreads, stream, list, work, level);
      }
      start_kernel(descend, tensors_here, kWarp, stream, list, work, level);
    }
    start_kernel(tally, blocks, kThreads, stream, list, work);
    start_kernel(scan, tensors_here, kThreads, stream, list, work);
    start_kernel(emit, blocks, kThreads, stream, list, work);
    work.states += list.count;
    work.tallies += blocks;
  });
}

}  // namespace

// States of every tensor, then tallies of every tile.
int64_t cuda::exact_workspace_bytes(const scalecom_tensor* tensors, int64_t count) {
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; ++i) tiles += tile_count(tensors[i]);
  return count * int64_t{sizeof(State)} + tiles * int64_t{sizeof(Tally)};
}

int32_t cuda::select_exact(const scalecom_tensor* tensors, int64_t count, int32_t gradient_type,
                           uint32_t* nonfinite, void* workspace, int64_t workspace_bytes,
                           void* stream) {
  if (!exact_selection_valid(tensors, count) || (count > 0 && !pointer_valid(workspace, 16))) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  if (workspace_bytes < exact_workspace_bytes(tensors, count)) return SCALECOM_WORKSPACE_TOO_SMALL;
  return with_gradient_type<CudaElements>(gradient_type, [&](auto zero) {
    return launch_exact<decltype(zero)>(tensors, count, nonfinite, workspace, stream);
  });
}

}  // namespace scalecom
