// Exact selection on CUDA: the k largest |p| of each tensor, by counting (see radix.h).
//
// Every launch covers the whole list: three times count and descend, then tally the tiles,
// scan the tallies, and emit the indices in order.
#include "core/cuda/launch.cuh"
#include "core/cuda/load.h"
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

// Keys of p, which the first pass has made.
struct Keys {
  const float* compensated;
  int64_t elements;
  bool aligned;

  __device__ explicit Keys(const scalecom_tensor& t)
      : compensated(t.compensated), elements(t.elements), aligned(vector_aligned(compensated)) {}

  // Of a thread's vectors of a tile, which begin `first`, `first + stride`, ... elements behind the
  // tile's first; -1 behind the tensor's end. All loads are on their way before the first is used.
  __device__ __forceinline__ void load(int64_t tile, int first, int stride,
                                       int32_t (&keys)[kVectors][kVector]) const {
    const float* start = compensated + tile * kTile + first;
    const int64_t left = elements - tile * kTile - first;
    if (aligned && (tile + 1) * kTile <= elements) {
      Packed<float> p[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) p[v] = packed_vector(start + v * stride);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) keys[v][i] = key_of(p[v].lane[i]);
      }
      return;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int at = v * stride + i;
        keys[v][i] = at < left ? key_of(start[at]) : -1;
      }
    }
  }
};

// Counts what a block's threads find: find(count) calls count(keys) for each of their vectors.
template <typename Find>
__device__ __forceinline__ void count_tile(State& state, RadixLevel radix, const Find& find) {
  __shared__ uint32_t bins[1 << 11];
  for (int i = threadIdx.x; i < 1 << radix.bits; i += kThreads) bins[i] = 0;
  __syncthreads();
  const int32_t prefix = state.key;
  find([&](const int32_t (&keys)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (keys[i] >= 0 && radix_agrees(radix, keys[i], prefix)) {
        atomicAdd(&bins[radix_digit(radix, keys[i])], 1u);
      }
    }
  });
  __syncthreads();
  for (int i = threadIdx.x; i < 1 << radix.bits; i += kThreads) {
    if (bins[i] != 0) atomicAdd(&state.bins[radix.first + i], bins[i]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    count_first(const List __grid_constant__ list, Workspace work, uint32_t* nonfinite) {
  constexpr int kBatch = Policy::narrowed<T>(Policy::Exact::kUnroll);
  const Unit unit = find_unit(list);
  const Compensation<T> p(list.tensors[unit.tensor]);
  const int64_t base = unit.index * kTile;
  const bool whole = p.interior(base + kTile);
  int32_t highest = 0;
  count_tile(work.states[unit.tensor], radix_level(0), [&](const auto& count) {
    const auto see = [&](int, const int32_t (&keys)[kVector]) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) highest = max(highest, keys[i]);
      count(keys);
    };
#pragma unroll 1
    for (int step = 0; step < kVectors; step += kBatch) {
      const int first = step * kStep + threadIdx.x * kVector;
      if (whole) {
        p.template batch<kBatch>(base, first, kStep, All{}, see);
      } else {
        p.template edge<kBatch>(base, first, kStep, range_from(base, 0, p.elements), see);
      }
    }
  });
  raise_flag(nonfinite, highest);
}

__global__ void __launch_bounds__(kThreads)
    count_next(const List __grid_constant__ list, Workspace work, int level) {
  const Unit unit = find_unit(list);
  const Keys p(list.tensors[unit.tensor]);
  int32_t keys[kVectors][kVector];
  p.load(unit.index, threadIdx.x * kVector, kStep, keys);
  count_tile(work.states[unit.tensor], radix_level(level), [&](const auto& count) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) count(keys[v]);
  });
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

__global__ void __launch_bounds__(kThreads)
    tally(const List __grid_constant__ list, Workspace work) {
  __shared__ Tally sums;
  if (threadIdx.x == 0) sums = {0, 0};
  __syncthreads();
  const Unit unit = find_unit(list);
  const Keys p(list.tensors[unit.tensor]);
  const int32_t threshold = work.states[unit.tensor].key;
  int32_t keys[kVectors][kVector];
  p.load(unit.index, threadIdx.x * kVector, kStep, keys);
  uint32_t above = 0;
  uint32_t equal = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      above += keys[v][i] > threshold;
      equal += keys[v][i] == threshold;
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

// Each warp has a run of the tile, so that threads meet once: for the counts of the warps before.
__global__ void __launch_bounds__(kThreads)
    emit(const List __grid_constant__ list, Workspace work) {
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kRow = kWarp * kVector;  // elements that a warp takes at a time
  __shared__ uint32_t totals[kWarps];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Keys p(t);
  const int32_t threshold = work.states[unit.tensor].key;
  const uint32_t ties = static_cast<uint32_t>(work.states[unit.tensor].ties);
  const Tally before = work.tallies[blockIdx.x];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int first = warp * kTile / kWarps + lane * kVector;
  int32_t keys[kVectors][kVector];
  p.load(unit.index, first, kRow, keys);
  // Two counts in one word, so that one sum adds both: those equal << 16 | those above.
  static_assert(kTile < 1 << 16, "a tile's counts fit 16 bits");
  uint32_t mine[kVectors];
  uint32_t all = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    mine[v] = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      mine[v] += (keys[v][i] > threshold) + ((keys[v][i] == threshold) << 16);
    }
    all += mine[v];
  }
  all = warp_sum(all);
  if (lane == 0) totals[warp] = all;
  __syncthreads();
  uint32_t sofar = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sofar += w < warp ? totals[w] : 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (__ballot_sync(kAllLanes, mine[v] != 0) == 0) continue;
    uint32_t through = mine[v];
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, through, step);
      if (lane >= step) through += other;
    }
    const uint32_t here = sofar + through - mine[v];
    sofar += __shfl_sync(kAllLanes, through, kWarp - 1);
    uint32_t above = before.above + (here & 0xffff);
    uint32_t equal = before.equal + (here >> 16);
    const uint32_t at = static_cast<uint32_t>(unit.index * kTile) + first + v * kRow;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (keys[v][i] > threshold || (keys[v][i] == threshold && equal < ties)) {
        offset_store(t, above + min(equal, ties), at + i);
      }
      above += keys[v][i] > threshold;
      equal += keys[v][i] == threshold;
    }
  }
}

template <typename T>
int32_t launch_exact(const scalecom_tensor* tensors, int64_t count, uint32_t* nonfinite,
                     void* workspace, void* stream) {
  Workspace work = {static_cast<State*>(workspace),
                    reinterpret_cast<Tally*>(static_cast<State*>(workspace) + count)};
  const int32_t cleared = status_of(cudaMemsetAsync(
      workspace, 0, static_cast<size_t>(count) * sizeof(State), static_cast<cudaStream_t>(stream)));
  if (cleared != SCALECOM_OK) return cleared;
  return launch_lists(tensors, count, tile_count, [&](const List& list, unsigned blocks) {
    const unsigned tensors_here = static_cast<unsigned>(list.count);
    int32_t status = SCALECOM_OK;
    const auto start = [&](auto kernel, unsigned size, unsigned threads, const auto&... arguments) {
      if (status != SCALECOM_OK) return;
      status = start_kernel(kernel, size, threads, stream, list, work, arguments...);
    };
    for (int level = 0; level < kRadixLevelCount; ++level) {
      if (level == 0) {
        start(count_first<T>, blocks, kThreads, nonfinite);
      } else {
        start(count_next, blocks, kThreads, level);
      }
      start(descend, tensors_here, kWarp, level);
    }
    start(tally, blocks, kThreads);
    start(scan, tensors_here, kThreads);
    start(emit, blocks, kThreads);
    work.states += list.count;
    work.tallies += blocks;
    return status;
  });
}

}  // namespace

// States of every tensor, then tallies of every tile.
int64_t cuda::exact_workspace_bytes(const scalecom_tensor* tensors, int64_t count) {
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; ++i) tiles += tile_count(tensors[i]);
  return count * int64_t{sizeof(State)} + tiles * int64_t{sizeof(Tally)};
}

int32_t cuda::load_exact(cudaFuncAttributes* attributes) {
  const int32_t status = for_gradient_types(
      [&](auto zero) { return load_kernels(attributes, count_first<decltype(zero)>); });
  if (status != SCALECOM_OK) return status;
  return load_kernels(attributes, count_next, descend, tally, scan, emit);
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
