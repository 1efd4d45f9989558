// Selection on CUDA, and its first rule: the largest |p| of each chunk, one or a few.
#include "core/cuda/launch.cuh"
#include "core/cuda/select_exact.h"
#include "core/validate.h"
#include "scalecom/scalecom_cuda.h"

namespace scalecom {
namespace {

// One per chunk: `lanes` threads of a warp share a chunk, and each block does kRounds sets.
constexpr int kRounds = Policy::SelectOne::kRounds;

SCALECOM_HD int lanes_for(const scalecom_tensor& t) { return Policy::SelectOne::lanes(t); }

SCALECOM_HD int64_t chunks_per_block(const scalecom_tensor& t) {
  return kThreads / lanes_for(t) * kRounds;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    select_one(const List __grid_constant__ list, uint32_t* nonfinite) {
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Compensation<T> p(t);
  const int lanes = lanes_for(t);
  const int lane = threadIdx.x % lanes;
  const int64_t chunks = chunk_count(t);
  int64_t chunk = unit.index * chunks_per_block(t) + threadIdx.x / lanes;
  int32_t highest = 0;
  for (int round = 0; round < kRounds; ++round, chunk += kThreads / lanes) {
    int32_t best = -1;
    uint32_t where = 0;
    if (chunk < chunks) {
      const int64_t begin = chunk * t.chunk_size;
      const int64_t end = begin + chunk_length(t, chunk);
      // Vectors begin at multiples of four elements of the tensor, so that they are
      // aligned; a chunk's first and last may be shared with its neighbours.
#pragma unroll Policy::SelectOne::kUnroll
      for (int64_t at = (begin / kVector + lane) * kVector; at < end; at += lanes * kVector) {
        int32_t keys[kVector];
        p.keys(at, begin, end, keys);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (keys[i] > best) {
            best = keys[i];
            where = static_cast<uint32_t>(at + i - begin);
          }
        }
      }
    }
    for (int step = lanes / 2; step > 0; step /= 2) {
      const int32_t other = __shfl_xor_sync(kAllLanes, best, step);
      const uint32_t there = __shfl_xor_sync(kAllLanes, where, step);
      if (other > best || (other == best && there < where)) {
        best = other;
        where = there;
      }
    }
    if (lane == 0 && chunk < chunks) offset_store(t, chunk, where);
    highest = max(highest, best);
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
  const int32_t best = __reduce_max_sync(kAllLanes, key);
  return {best, __reduce_min_sync(kAllLanes, key == best ? offset : 0xffffffffu)};
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
  alignas(16) __shared__ int32_t tiles[kWarps][kRows * kRowKeys];
  __shared__ Entry stagings[kWarps][SCALECOM_MAX_CHUNK_KEEP];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t chunk = unit.index * kWarps + warp;
  if (chunk >= chunk_count(t)) return;
  const Compensation<T> p(t);
  const int64_t begin = chunk * t.chunk_size;
  const int64_t end = begin + chunk_length(t, chunk);
  const int keep = static_cast<int>(chunk_kept(t, chunk));
  int32_t* tile = tiles[warp];
  Entry few = {-1, 0};  // lane r: the r-th best so far
  int32_t highest = 0;

  for (int64_t base = begin / kVector; base * kVector < end; base += kTileVectors) {
    int32_t best = -1;
    uint32_t where = 0;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = (base + row * kWarp + lane) * kVector;
      int32_t keys[kVector] = {-1, -1, -1, -1};
      if (at < end) p.keys(at, begin, end, keys);
      *reinterpret_cast<int4*>(tile + row * kRowKeys + lane * kVector) =
          make_int4(keys[0], keys[1], keys[2], keys[3]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (keys[i] > best) {
          best = keys[i];
          where = static_cast<uint32_t>(at + i - begin);
        }
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
      const int64_t element = (base + lane / kVector * kWarp + owner) * kVector + lane % kVector;
      const uint32_t offset = static_cast<uint32_t>(element - begin);
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
    few = base == begin / kVector ? fresh : merge(few, fresh, stagings[warp]);
  }
  if (lane < keep) offset_store(t, chunk * t.chunk_keep + lane, few.offset);
  raise_flag(nonfinite, highest);
}

template <typename T>
int32_t launch_largest(const scalecom_tensor* tensors, int64_t count, uint32_t* nonfinite,
                       void* stream) {
  // Tensors that keep one element a chunk and those that keep several have kernels of
  // their own; each skips the other's.
  const int32_t status = launch_lists(
      tensors, count,
      [](const scalecom_tensor& t) {
        return t.chunk_keep == 1 ? ceil_div(chunk_count(t), chunks_per_block(t)) : 0;
      },
      [&](const List& list, unsigned blocks) {
        start_kernel(select_one<T>, blocks, kThreads, stream, list, nonfinite);
      });
  if (status != SCALECOM_OK) return status;
  return launch_lists(
      tensors, count,
      [](const scalecom_tensor& t) {
        return t.chunk_keep == 1 ? 0 : ceil_div(chunk_count(t), kWarps);
      },
      [&](const List& list, unsigned blocks) {
        start_kernel(select_few<T>, blocks, kThreads, stream, list, nonfinite);
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
