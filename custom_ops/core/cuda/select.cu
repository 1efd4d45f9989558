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

// A tile of whole chunks goes through shared memory, so that threads load vectors side by side
// wherever chunks begin. A tile has chunks in fours: the next then begins at a vector, too.
constexpr int kTileVectors = Policy::SelectTile::kVectors;
constexpr int kTile = kThreads * kVector * kTileVectors;

// Where element i of the tile lies: a vector is left out after each 32 keys, so that chunks of 8,
// 16 or 32 do not all begin in one bank.
SCALECOM_HD int tile_slot(int i) { return i + i / kWarp * kVector; }
constexpr int kTileSlots = kTile + kTile / kWarp * kVector;

// Fills it with the keys of `length` elements.
template <typename T>
__device__ __forceinline__ void load_tile(const Compensation<T>& p, int64_t base, int length,
                                          int32_t* tile) {
  const auto put = [&](int at, const int32_t (&keys)[kVector]) {
    *reinterpret_cast<int4*>(tile + tile_slot(at)) = make_int4(keys[0], keys[1], keys[2], keys[3]);
  };
  const int first = threadIdx.x * kVector;
  if (p.interior(base + length)) {
    p.template batch<kTileVectors>(base, first, kThreads * kVector, Range{0, length}, put);
  } else {
    p.template edge<kTileVectors>(base, first, kThreads * kVector, Range{0, length}, put);
  }
  __syncthreads();
}

// Small chunks: each thread takes a chunk of a tile and all that is kept of it.
SCALECOM_HD bool is_small(const scalecom_tensor& t) {
  return t.chunk_size <= Policy::SelectTile::kSmallChunk;
}

SCALECOM_HD int small_chunks(const scalecom_tensor& t) {
  return kTile / static_cast<int>(t.chunk_size) / kVector * kVector;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    select_small(const List __grid_constant__ list, uint32_t* nonfinite) {
  alignas(16) __shared__ int32_t tile[kTileSlots];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Compensation<T> p(t);
  const int size = static_cast<int>(t.chunk_size);
  const int64_t first_chunk = unit.index * small_chunks(t);
  const int64_t base = first_chunk * size;
  const int length = static_cast<int>(minimum(small_chunks(t) * size, p.elements - base));
  load_tile(p, base, length, tile);

  int32_t highest = 0;
  for (int chunk = threadIdx.x; chunk * size < length; chunk += kThreads) {
    const int begin = chunk * size;
    const int end = min(begin + size, length);
    const int kept = static_cast<int>(end - begin == size ? t.chunk_keep : t.tail_keep);
    for (int rank = 0; rank < kept; ++rank) {
      Best best;
#pragma unroll 4
      for (int i = begin; i < end; ++i) {
        best.see(tile[tile_slot(i)], static_cast<uint32_t>(i - begin));
      }
      offset_store(t, (first_chunk + chunk) * t.chunk_keep + rank, best.offset);
      highest = max(highest, best.key);
      tile[tile_slot(begin + static_cast<int>(best.offset))] = -1;
    }
  }
  raise_flag(nonfinite, highest);
}

// Several of each chunk of middle size: a lane to a column of 16 elements, a group of lanes to a
// chunk of a tile, and all chunks at once. Each lane knows the best of its column. In each round
// the group takes the best of these, and looks for that column's next together.
constexpr int kColumn = kTile / kThreads;

SCALECOM_HD bool is_middle(const scalecom_tensor& t) {
  return !is_small(t) && t.chunk_keep > 1 && t.chunk_size <= kColumn * kColumn;
}

// As many as there are elements in a column, or half of them.
SCALECOM_HD int middle_lanes(const scalecom_tensor& t) {
  return t.chunk_size <= kColumn * kColumn / 2 ? kColumn / 2 : kColumn;
}
static_assert(kColumn <= kWarp && kThreads / kColumn % kVector == 0,
              "a group is in one warp, and a tile has chunks in fours");

// The first lane of those with the largest key in a group.
template <int kLanes>
__device__ __forceinline__ int first_best(int32_t key) {
  int32_t best = key;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    best = max(best, __shfl_xor_sync(kAllLanes, best, step));
  }
  const int group = threadIdx.x % kWarp / kLanes * kLanes;
  return group + __ffs(__ballot_sync(kAllLanes, key == best) >> group) - 1;
}

// Selects from a tile of `length` keys, the chunks from `first_chunk` on. Returns a thread's
// highest.
template <int kLanes>
__device__ __forceinline__ int32_t select_columns(const scalecom_tensor& t, int64_t first_chunk,
                                                  int length, int32_t* tile) {
  const int size = static_cast<int>(t.chunk_size);
  const int keep = static_cast<int>(t.chunk_keep);
  const int chunk = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int begin = chunk * size;
  const int end = min(begin + size, length);
  const int kept = end - begin == size ? keep : end > begin ? static_cast<int>(t.tail_keep) : 0;
  // Columns may go on in the next chunk, whose keys do not count and may change meanwhile, but not
  // behind the tile.
  const auto see = [&](Best& best, int offset) {
    const int32_t key = tile[tile_slot(begin + offset)];
    best.see(begin + offset < end ? key : -1, static_cast<uint32_t>(offset));
  };
  Best own;
#pragma unroll
  for (int i = 0; i < kColumn; ++i) see(own, lane * kColumn + i);
  const int32_t highest = own.key;
  for (int first = 0; first < keep; first += kLanes) {
    uint32_t taken = 0;  // lane r: of rank first + r
    for (int r = 0; r < min(kLanes, keep - first); ++r) {
      const int owner = first_best<kLanes>(own.key);
      const bool owns = owner == static_cast<int>(threadIdx.x % kWarp);
      if (owns) tile[tile_slot(begin + static_cast<int>(own.offset))] = -1;
      const uint32_t offset = __shfl_sync(kAllLanes, own.offset, owner);
      if (lane == r) taken = offset;
      __syncwarp();
      Best next;
#pragma unroll
      for (int i = 0; i < kColumn / kLanes; ++i) {
        see(next, owner % kLanes * kColumn + lane * (kColumn / kLanes) + i);
      }
      const int finder = first_best<kLanes>(next.key);
      next.key = __shfl_sync(kAllLanes, next.key, finder);
      next.offset = __shfl_sync(kAllLanes, next.offset, finder);
      if (owns) own = next;
    }
    if (first + lane < kept) {
      offset_store(t, (first_chunk + chunk) * keep + first + lane, taken);
    }
  }
  return highest;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, Policy::SelectTile::kMiddleBlocks)
    select_middle(const List __grid_constant__ list, uint32_t* nonfinite) {
  alignas(16) __shared__ int32_t tile[kTileSlots];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const Compensation<T> p(t);
  const int chunks = kThreads / middle_lanes(t);
  const int64_t first_chunk = unit.index * chunks;
  const int64_t base = first_chunk * t.chunk_size;
  const int length = static_cast<int>(minimum(chunks * t.chunk_size, p.elements - base));
  load_tile(p, base, length, tile);
  raise_flag(nonfinite, chunks == kThreads / kColumn
                            ? select_columns<kColumn>(t, first_chunk, length, tile)
                            : select_columns<kColumn / 2>(t, first_chunk, length, tile));
}

// One per chunk: `lanes` threads of a warp share a chunk, and each block does kRounds sets.
constexpr int kRounds = Policy::SelectOne::kRounds;

SCALECOM_HD int lanes_for(const scalecom_tensor& t) { return Policy::SelectOne::lanes(t); }

SCALECOM_HD int64_t chunks_per_block(const scalecom_tensor& t) {
  return kThreads / lanes_for(t) * kRounds;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, Policy::SelectOne::kBlocks<T>)
    select_one(const List __grid_constant__ list, uint32_t* nonfinite) {
  constexpr int kBatch = Policy::SelectOne::kUnroll<T>;
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

// A few of each larger chunk: a warp per chunk, tile by tile. The tile's keys lie in shared memory
// as kRows rows of 32 vectors; lane c knows the best of column c (vector c of every row). Each
// round takes the best column's best, and the warp together finds that column's next.
constexpr int kRows = Policy::SelectFew::kRows;
static_assert(kRows * kVector == kWarp, "a column has a key for each lane");
constexpr int kFewElements = kRows * kWarp * kVector;
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

  for (int64_t base = begin / kVector * kVector; base < end; base += kFewElements) {
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
  status = launch(select_middle<T>, [](const scalecom_tensor& t) {
    return is_middle(t) ? ceil_div(chunk_count(t), kThreads / middle_lanes(t)) : 0;
  });
  if (status != SCALECOM_OK) return status;
  return launch(select_few<T>, [](const scalecom_tensor& t) {
    return !is_small(t) && !is_middle(t) && t.chunk_keep > 1 ? ceil_div(chunk_count(t), kWarps) : 0;
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
    return load_kernels(attributes, select_small<T>, select_middle<T>, select_one<T>,
                        select_few<T>);
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
