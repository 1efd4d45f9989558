// Selection on CUDA, and its first rule: the largest |p| of each chunk, one or a few. One pass
// makes p, checks and selects.
#include "core/cuda/launch.cuh"
#include "core/cuda/load.h"
#include "core/cuda/select_exact.h"
#include "core/validate.h"
#include "scalecom/scalecom_cuda.h"

namespace scalecom {
namespace {

// The largest key so far, and where it was first seen.
struct Best {
  int32_t key = -1;
  uint32_t offset = 0;

  __device__ __forceinline__ void see(int32_t other, uint32_t there) {
    if (other > key) {
      key = other;
      offset = there;
    }
  }
};

// Small chunks: a tile of whole chunks goes through shared memory, so that threads load vectors
// side by side wherever chunks begin, and then each takes a chunk and all that is kept of it.
constexpr int kSmallVectors = Policy::SelectSmall::kVectors;
constexpr int kSmallTile = kThreads * kVector * kSmallVectors;

SCALECOM_HD bool is_small(const scalecom_tensor& t) {
  return t.chunk_size <= Policy::SelectSmall::kChunk;
}

// As many as fill a tile, in fours: the next tile then begins at a vector, too.
SCALECOM_HD int small_chunks(const scalecom_tensor& t) {
  return kSmallTile / static_cast<int>(t.chunk_size) / kVector * kVector;
}

// Where element i of the tile lies: a vector is left out after each 32 keys, so that chunks of 8,
// 16 or 32 do not all begin in one bank.
SCALECOM_HD int small_slot(int i) { return i + i / kWarp * kVector; }

template <typename T>
__global__ void __launch_bounds__(kThreads)
    select_small(const List __grid_constant__ list, uint32_t* nonfinite) {
  alignas(16) __shared__ int32_t tile[kSmallTile + kSmallTile / kWarp * kVector];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Compensation<T> p(t);
  const int size = static_cast<int>(t.chunk_size);
  const int64_t first_chunk = unit.index * small_chunks(t);
  const int64_t base = first_chunk * size;
  const int length = static_cast<int>(minimum(small_chunks(t) * size, p.elements - base));
  const auto put = [&](int at, const int32_t (&keys)[kVector]) {
    *reinterpret_cast<int4*>(tile + small_slot(at)) = make_int4(keys[0], keys[1], keys[2], keys[3]);
  };
  const int first = threadIdx.x * kVector;
  if (p.interior(base + length)) {
    p.template batch<kSmallVectors>(base, first, kThreads * kVector, Range{0, length}, put);
  } else {
    p.template edge<kSmallVectors>(base, first, kThreads * kVector, Range{0, length}, put);
  }
  __syncthreads();

  int32_t highest = 0;
  for (int chunk = threadIdx.x; chunk * size < length; chunk += kThreads) {
    const int begin = chunk * size;
    const int end = min(begin + size, length);
    const int kept = static_cast<int>(end - begin == size ? t.chunk_keep : t.tail_keep);
    for (int rank = 0; rank < kept; ++rank) {
      Best best;
#pragma unroll 4
      for (int i = begin; i < end; ++i) {
        best.see(tile[small_slot(i)], static_cast<uint32_t>(i - begin));
      }
      offset_store(t, (first_chunk + chunk) * t.chunk_keep + rank, best.offset);
      highest = max(highest, best.key);
      tile[small_slot(begin + static_cast<int>(best.offset))] = -1;
    }
  }
  raise_flag(nonfinite, highest);
}

// One per chunk: `lanes` threads of a warp share a chunk, and each block does kRounds sets.
constexpr int kRounds = Policy::SelectOne::kRounds;

SCALECOM_HD int lanes_for(const scalecom_tensor& t) { return Policy::SelectOne::lanes(t); }

SCALECOM_HD int64_t chunks_per_block(const scalecom_tensor& t) {
  return kThreads / lanes_for(t) * kRounds;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, Policy::SelectOne::kBlocks)
    select_one(const List __grid_constant__ list, uint32_t* nonfinite) {
  constexpr int kBatch = Policy::narrowed<T>(Policy::SelectOne::kUnroll);
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Compensation<T> p(t);
  const int lanes = lanes_for(t);
  const int lane = threadIdx.x % lanes;
  const int stride = lanes * kVector;
  int64_t chunk = unit.index * chunks_per_block(t) + threadIdx.x / lanes;
  int32_t highest = 0;
  for (int round = 0; round < kRounds; ++round, chunk += kThreads / lanes) {
    const int64_t begin = chunk * t.chunk_size;
    const int64_t end = minimum(begin + t.chunk_size, p.elements);
    const bool interior = p.interior(end);
    Best best;
    for (int64_t base = begin / kVector * kVector; base < end; base += kBatch * stride) {
      const Range counts = range_from(base, begin, end);
      const auto see = [&](int at, const int32_t (&keys)[kVector]) {
        const uint32_t offset = static_cast<uint32_t>(base - begin) + static_cast<uint32_t>(at);
#pragma unroll
        for (int i = 0; i < kVector; ++i) best.see(keys[i], offset + i);
      };
      if (interior) {
        p.template batch<kBatch>(base, lane * kVector, stride, counts, see);
      } else {
        p.template edge<kBatch>(base, lane * kVector, stride, counts, see);
      }
    }
    for (int step = lanes / 2; step > 0; step /= 2) {
      const int32_t other = __shfl_xor_sync(kAllLanes, best.key, step);
      const uint32_t there = __shfl_xor_sync(kAllLanes, best.offset, step);
      if (other > best.key || (other == best.key && there < best.offset)) best = {other, there};
    }
    if (lane == 0 && begin < end) offset_store(t, chunk, best.offset);
    highest = max(highest, best.key);
  }
  raise_flag(nonfinite, highest);
}

// A few per chunk: a warp per chunk, tile by tile. The tile's keys lie in shared memory as
// kRows rows of 32 vectors; lane c knows the best of column c (vector c of every row). Each
// round takes the best column's best, and the warp together finds that column's next.
constexpr int kRows = Policy::SelectFew::kRows;
static_assert(kRows * kVector == kWarp, "a column has a key for each lane");
constexpr int kTileVectors = kRows * kWarp;
constexpr int kWarps = kThreads / kWarp;
// A row is one vector longer than it need be: a column's 32 keys then lie in 32 banks.
constexpr int kRowKeys = (kWarp + 1) * kVector;

struct Entry {
  int32_t key;
  uint32_t offset;
};

__device__ __forceinline__ Entry warp_best(int32_t key, uint32_t offset) {
  const int32_t best = warp_max(key);
  return {best, warp_min(key == best ? offset : 0xffffffffu)};
}

// Merges two lists sorted by falling key, entry r in lane r, empty ones with key -1. All of
// `later` have higher offsets than `list`. The best 16 come back the same way.
__device__ __forceinline__ Entry merge(Entry list, Entry later, Entry* staging) {
  const int lane = threadIdx.x % kWarp;
  int list_rank = lane;
  int later_rank = lane;
  for (int i = 0; i < SCALECOM_MAX_CHUNK_KEEP; ++i) {
    list_rank += __shfl_sync(kAllLanes, later.key, i) > list.key;
    later_rank += __shfl_sync(kAllLanes, list.key, i) >= later.key;
  }
  __syncwarp();
  if (lane < SCALECOM_MAX_CHUNK_KEEP) {
    if (list_rank < SCALECOM_MAX_CHUNK_KEEP) staging[list_rank] = list;
    if (later_rank < SCALECOM_MAX_CHUNK_KEEP) staging[later_rank] = later;
  }
  __syncwarp();
  return lane < SCALECOM_MAX_CHUNK_KEEP ? staging[lane] : Entry{-1, 0};
}

template <typename T>
__global__ void __launch_bounds__(kThreads, Policy::SelectFew::kBlocks)
    select_few(const List __grid_constant__ list, uint32_t* nonfinite) {
  constexpr int kBatch = Policy::narrowed<T>(Policy::SelectFew::kUnroll);
  alignas(16) __shared__ int32_t tiles[kWarps][kRows * kRowKeys];
  __shared__ Entry stagings[kWarps][SCALECOM_MAX_CHUNK_KEEP];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t chunk = unit.index * kWarps + warp;
  const Compensation<T> p(t);
  const int64_t begin = chunk * t.chunk_size;
  const int64_t end = minimum(begin + t.chunk_size, p.elements);
  if (begin >= end) return;
  const bool interior = p.interior(end);
  const int keep = static_cast<int>(end - begin == t.chunk_size ? t.chunk_keep : t.tail_keep);
  int32_t* tile = tiles[warp];
  Entry few = {-1, 0};  // lane r: the r-th best so far
  int32_t highest = 0;

  for (int64_t base = begin / kVector * kVector; base < end; base += kTileVectors * kVector) {
    const Range counts = range_from(base, begin, end);
    int32_t best = -1;
    uint32_t where = 0;
    const auto put = [&](int at, const int32_t (&keys)[kVector]) {
      *reinterpret_cast<int4*>(tile + at / (kWarp * kVector) * kRowKeys + lane * kVector) =
          make_int4(keys[0], keys[1], keys[2], keys[3]);
      const uint32_t offset = static_cast<uint32_t>(base - begin) + static_cast<uint32_t>(at);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (keys[i] > best) {
          best = keys[i];
          where = offset + i;
        }
      }
    };
#pragma unroll
    for (int row = 0; row < kRows; row += kBatch) {
      const int first = (row * kWarp + lane) * kVector;
      if (interior) {
        p.template batch<kBatch>(base, first, kWarp * kVector, counts, put);
      } else {
        p.template edge<kBatch>(base, first, kWarp * kVector, counts, put);
      }
    }
    __syncwarp();
    highest = max(highest, best);
    // A full list's last key: a later offset must exceed it.
    const int32_t floor = __shfl_sync(kAllLanes, few.key, keep - 1);
    Entry fresh = {-1, 0};
    for (int round = 0; round < keep; ++round) {
      const Entry top = warp_best(best, where);
      if (top.key <= floor) break;
      if (lane == round) fresh = top;
      const int owner = __ffs(__ballot_sync(kAllLanes, best == top.key && where == top.offset)) - 1;
      // This lane's share of the column: row lane / 4, element lane % 4.
      int32_t* slot = tile + lane / kVector * kRowKeys + owner * kVector + lane % kVector;
      const int element = (lane / kVector * kWarp + owner) * kVector + lane % kVector;
      const uint32_t offset = static_cast<uint32_t>(base - begin) + static_cast<uint32_t>(element);
      int32_t key = *slot;
      if (key >= 0 && offset == top.offset) {
        key = -1;
        *slot = -1;
      }
      __syncwarp();
      const Entry next = warp_best(key, offset);
      if (lane == owner) {
        best = next.key;
        where = next.offset;
      }
    }
    few = base <= begin ? fresh : merge(few, fresh, stagings[warp]);
  }
  if (lane < keep) offset_store(t, chunk * t.chunk_keep + lane, few.offset);
  raise_flag(nonfinite, highest);
}

template <typename T>
int32_t launch_largest(const scalecom_tensor* tensors, int64_t count, uint32_t* nonfinite,
                       void* stream) {
  // Each has a kernel of its own, which skips the tensors of the others.
  const auto launch = [&](auto kernel, const auto& blocks_for) {
    return launch_lists(tensors, count, blocks_for, [&](const List& list, unsigned blocks) {
      return start_kernel(kernel, blocks, kThreads, stream, list, nonfinite);
    });
  };
  int32_t status = launch(select_small<T>, [](const scalecom_tensor& t) {
    return is_small(t) ? ceil_div(chunk_count(t), small_chunks(t)) : 0;
  });
  if (status != SCALECOM_OK) return status;
  status = launch(select_one<T>, [](const scalecom_tensor& t) {
    return !is_small(t) && t.chunk_keep == 1 ? ceil_div(chunk_count(t), chunks_per_block(t)) : 0;
  });
  if (status != SCALECOM_OK) return status;
  return launch(select_few<T>, [](const scalecom_tensor& t) {
    return !is_small(t) && t.chunk_keep > 1 ? ceil_div(chunk_count(t), kWarps) : 0;
  });
}

using Launch = int32_t (*)(const scalecom_tensor* tensors, int64_t count, uint32_t* nonfinite,
                           void* stream);

// The launches of a rule that looks at one chunk at a time; null for any other.
template <typename T>
Launch launch_of(int32_t selection) {
  switch (selection) {
    case SCALECOM_CHUNK: return launch_largest<T>;
    default: return nullptr;
  }
}

}  // namespace

int32_t cuda::load_select(cudaFuncAttributes* attributes) {
  return for_gradient_types([&](auto zero) {
    using T = decltype(zero);
    return load_kernels(attributes, select_small<T>, select_one<T>, select_few<T>);
  });
}

}  // namespace scalecom

using namespace scalecom;  // NOLINT: this part of the file is the outside of the namespace

extern "C" {

int64_t scalecom_offsets_workspace_cuda(const scalecom_tensor* tensors, int64_t count,
                                        int32_t selection) {
  if (!layouts_valid(tensors, count)) return -1;
  if (selection == SCALECOM_EXACT) return exact_workspace_bytes(tensors, count);
  return launch_of<float>(selection) != nullptr ? 0 : -1;
}

int32_t scalecom_offsets_select_cuda(const scalecom_tensor* tensors, int64_t count,
                                     int32_t selection, int32_t gradient_type, uint32_t* nonfinite,
                                     void* workspace, int64_t workspace_bytes, void* stream) {
  if (!tensors_valid(tensors, count, kGradient | kResidual | kCompensated | kOffsets,
                     gradient_type) ||
      !pointer_valid(nonfinite, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  if (selection == SCALECOM_EXACT) {
    return select_exact(tensors, count, gradient_type, nonfinite, workspace, workspace_bytes,
                        stream);
  }
  return with_gradient_type<CudaElements>(gradient_type, [&](auto zero) -> int32_t {
    const Launch launch = launch_of<decltype(zero)>(selection);
    if (launch == nullptr || !chunk_selection_valid(tensors, count)) {
      return SCALECOM_INVALID_ARGUMENT;
    }
    return launch(tensors, count, nonfinite, stream);
  });
}

}  // extern "C"
