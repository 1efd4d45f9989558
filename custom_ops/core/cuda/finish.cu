// All but selection on CUDA: compensate, gather, filter, scatter, descend.
#include "core/cuda/launch.cuh"
#include "core/cuda/load.h"
#include "core/validate.h"
#include "scalecom/scalecom_cuda.h"

namespace scalecom {
namespace {

constexpr int kVectors = Policy::Finish::kVectors;
constexpr int kStep = kThreads * kVector;  // elements that a block takes at a time
constexpr int kTile = kStep * kVectors;

SCALECOM_HD int64_t tile_count(const scalecom_tensor& t) { return ceil_div(t.elements, kTile); }

// Without a division where one is kept of each.
__device__ __forceinline__ int64_t chunk_of(const scalecom_tensor& t, int64_t entry) {
  return t.chunk_keep == 1 ? entry : entry / t.chunk_keep;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    compensate(const List __grid_constant__ list, uint32_t* nonfinite) {
  const Unit unit = find_unit(list);
  const Compensation<T> p(list.tensors[unit.tensor]);
  const int64_t base = unit.index * kTile;
  int32_t highest = 0;
  const auto see = [&](int, const int32_t (&keys)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) highest = max(highest, keys[i]);
  };
  const int first = threadIdx.x * kVector;
  if (p.interior(base + kTile)) {
    p.template batch<kVectors>(base, first, kStep, All{}, see);
  } else {
    p.template edge<kVectors>(base, first, kStep, range_from(base, 0, p.elements), see);
  }
  raise_flag(nonfinite, highest);
}

__global__ void __launch_bounds__(kThreads)
    gather(const List __grid_constant__ list, int32_t wire_type, float wire_limit) {
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const int64_t entry = unit.index * kThreads + threadIdx.x;
  if (entry >= kept_count(t)) return;
  const int64_t element = entry_element(t, chunk_of(t, entry), entry);
  if (element < 0) {
    wire_store(t.values, wire_type, entry, __int_as_float(0x7fc00000));
    return;
  }
  const float p = t.compensated[element];
  const float sent = wire_limited(p, wire_limit);
  wire_store(t.values, wire_type, entry, sent);
  t.compensated[element] = __fsub_rn(p, wire_round(sent, wire_type));
}

// Where *finite is 0 the residual is put in the place of what is unsent.
__global__ void __launch_bounds__(kThreads)
    filter(const List __grid_constant__ list, float beta, const uint8_t* finite) {
  const bool is_finite = *finite != 0;
  if (is_finite && beta == 1.0f) return;
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const float forget = __fsub_rn(1.0f, beta);
  const auto filtered = [=](float m, float unsent) {
    return is_finite ? __fadd_rn(__fmul_rn(forget, m), __fmul_rn(beta, unsent)) : m;
  };
  const int64_t at = unit.index * kTile + threadIdx.x * kVector;
  const float* residual = t.residual + at;
  float* unsent = t.compensated + at;
  if (vector_aligned(residual) && vector_aligned(static_cast<const float*>(unsent)) &&
      (unit.index + 1) * kTile <= t.elements) {
    Packed<float> m[kVectors];
    Packed<float> u[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      m[v] = stream_vector(residual + v * kStep);
      u[v] = packed_vector(static_cast<const float*>(unsent) + v * kStep);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Vector result;
#pragma unroll
      for (int i = 0; i < kVector; ++i) result.lane[i] = filtered(m[v].lane[i], u[v].lane[i]);
      store_vector(unsent + v * kStep, result);
    }
    return;
  }
#pragma unroll 1
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int e = v * kStep + i;
      if (at + e < t.elements) unsent[e] = filtered(residual[e], unsent[e]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    descend(const ListOf<scalecom_slices> __grid_constant__ list, const float* learning_rate) {
  const Unit unit = find_unit(list);
  const scalecom_slices& s = list.tensors[unit.tensor];
  const int64_t i = unit.index * kThreads + threadIdx.x;
  if (i >= s.size) return;
  const int64_t element = s.indices[i];
  if (element < 0 || element >= s.elements) return;
  s.variable[element] = __fsub_rn(s.variable[element], __fmul_rn(s.values[i], *learning_rate));
}

__global__ void write_flag(const uint32_t* nonfinite, int32_t wire_type, void* flag) {
  wire_store(flag, wire_type, 0, *nonfinite == 0 ? 0.0f : __int_as_float(kInfinityKey));
}

// First entry of the chunk-less layout (offsets increase) that is at least `element`: each
// step of a warp's search narrows the range 32 times, not twice, for one wait on memory.
__device__ int64_t warp_lower_bound(const scalecom_tensor& t, int64_t begin, int64_t end,
                                    int64_t offset) {
  const int lane = threadIdx.x % kWarp;
  while (begin < end) {
    const int64_t step = ceil_div(end - begin, kWarp);
    const int64_t probe = begin + lane * step;
    const bool below = probe < end && static_cast<int64_t>(offset_load(t, probe)) < offset;
    const int passed = __popc(__ballot_sync(kAllLanes, below));
    if (passed == 0) return begin;
    const int64_t last_below = begin + (passed - 1) * step;
    end = minimum(end, last_below + step);
    begin = last_below + 1;
  }
  return begin;
}

// Scatter of one tile. Slot e of shared memory says which entry selected element e of the tile, if
// any: every element is then written once, by one thread.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    scatter(const List __grid_constant__ list, int32_t wire_type) {
  alignas(16) __shared__ uint16_t slots[kTile];
  __shared__ int64_t found[2];
  const Unit unit = find_unit(list);
  const scalecom_tensor& t = list.tensors[unit.tensor];
  const int64_t begin = unit.index * kTile;
  const int64_t end = minimum(begin + kTile, t.elements);
  T* output = static_cast<T*>(t.output);
  const bool aligned = vector_aligned(output);

  // Entries of the chunks that reach into the tile; of a long list of increasing offsets,
  // those that do so themselves.
  const int64_t first_chunk = begin / t.chunk_size;
  const int64_t last_chunk = (end - 1) / t.chunk_size;
  int64_t first = first_chunk * t.chunk_keep;
  int64_t last = last_chunk * t.chunk_keep + chunk_kept(t, last_chunk);
  if (t.chunk_keep > SCALECOM_MAX_CHUNK_KEEP) {
    if (threadIdx.x < 2 * kWarp) {
      // Warp 0 finds the beginning, in the first chunk; warp 1 the end, in the last.
      const bool front = threadIdx.x < kWarp;
      const int64_t chunk = front ? first_chunk : last_chunk;
      const int64_t start = chunk * t.chunk_keep;
      const int64_t bound = warp_lower_bound(t, start, start + chunk_kept(t, chunk),
                                             (front ? begin : end) - chunk * t.chunk_size);
      if (threadIdx.x % kWarp == 0) found[front ? 0 : 1] = bound;
    }
  }
  for (int i = threadIdx.x; i < kTile * 2 / 16; i += kThreads) {
    reinterpret_cast<int4*>(slots)[i] = make_int4(0, 0, 0, 0);
  }
  __syncthreads();
  if (t.chunk_keep > SCALECOM_MAX_CHUNK_KEEP) {
    first = found[0];
    // Distinct offsets are no more than elements; corrupt ones must not overflow a slot.
    last = minimum(found[1], first + 65535);
  }
  for (int64_t entry = first + threadIdx.x; entry < last; entry += kThreads) {
    const int64_t element = entry_element(t, chunk_of(t, entry), entry);
    if (element >= begin && element < end) {
      slots[element - begin] = static_cast<uint16_t>(entry - first + 1);
    }
  }
  __syncthreads();

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int local = (v * kThreads + threadIdx.x) * kVector;
    const int64_t at = begin + local;
    const ushort4 packed = *reinterpret_cast<const ushort4*>(slots + local);
    const uint16_t slot[kVector] = {packed.x, packed.y, packed.z, packed.w};
    Vector dense;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      dense.lane[i] = slot[i] == 0 ? 0.0f : wire_load(t.reduced, wire_type, first + slot[i] - 1);
    }
    if (aligned && at + kVector <= end) {
      store_vector(output + at, dense);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i < end) output[at + i] = from_float<T>(dense.lane[i]);
      }
    }
  }
}

}  // namespace

int32_t cuda::load_finish(cudaFuncAttributes* attributes) {
  const int32_t status = for_gradient_types([&](auto zero) {
    using T = decltype(zero);
    return load_kernels(attributes, compensate<T>, scatter<T>);
  });
  if (status != SCALECOM_OK) return status;
  return load_kernels(attributes, gather, filter, descend, write_flag);
}

}  // namespace scalecom

using namespace scalecom;  // NOLINT: this part of the file is the outside of the namespace

extern "C" {

int32_t scalecom_gradients_compensate_cuda(const scalecom_tensor* tensors, int64_t count,
                                           int32_t gradient_type, uint32_t* nonfinite,
                                           void* stream) {
  if (!tensors_valid(tensors, count, kGradient | kResidual | kCompensated, gradient_type) ||
      !pointer_valid(nonfinite, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  return with_gradient_type<CudaElements>(gradient_type, [&](auto zero) {
    return launch_lists(tensors, count, tile_count, [&](const List& list, unsigned blocks) {
      return start_kernel(compensate<decltype(zero)>, blocks, kThreads, stream, list, nonfinite);
    });
  });
}

int32_t scalecom_values_gather_cuda(const scalecom_tensor* tensors, int64_t count,
                                    int32_t wire_type, float wire_limit, void* stream) {
  if (!limit_valid(wire_limit) || !tensors_valid(tensors, count, kCompensated | kOffsets | kValues,
                                                 SCALECOM_FLOAT32, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const auto blocks_for = [](const scalecom_tensor& t) {
    return ceil_div(kept_count(t), kThreads);
  };
  return launch_lists(tensors, count, blocks_for, [&](const List& list, unsigned blocks) {
    return start_kernel(gather, blocks, kThreads, stream, list, wire_type, wire_limit);
  });
}

int32_t scalecom_flag_write_cuda(const uint32_t* nonfinite, int32_t wire_type, void* flag,
                                 void* stream) {
  if (!flag_valid(nonfinite, wire_type, flag)) return SCALECOM_INVALID_ARGUMENT;
  return start_kernel(write_flag, 1, 1, stream, nonfinite, wire_type, flag);
}

int32_t scalecom_residuals_filter_cuda(const scalecom_tensor* tensors, int64_t count, float beta,
                                       const uint8_t* finite, void* stream) {
  if (!beta_valid(beta) || !pointer_valid(finite, 1) ||
      !tensors_valid(tensors, count, kResidual | kCompensated)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  return launch_lists(tensors, count, tile_count, [&](const List& list, unsigned blocks) {
    return start_kernel(filter, blocks, kThreads, stream, list, beta, finite);
  });
}

int32_t scalecom_outputs_scatter_cuda(const scalecom_tensor* tensors, int64_t count,
                                      int32_t gradient_type, int32_t wire_type, void* stream) {
  if (!tensors_valid(tensors, count, kOffsets | kReduced | kOutput, gradient_type, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  return with_gradient_type<CudaElements>(gradient_type, [&](auto zero) {
    return launch_lists(tensors, count, tile_count, [&](const List& list, unsigned blocks) {
      return start_kernel(scatter<decltype(zero)>, blocks, kThreads, stream, list, wire_type);
    });
  });
}

int32_t scalecom_variables_descend_cuda(const scalecom_slices* slices, int64_t count,
                                        const float* learning_rate, void* stream) {
  if (!slices_valid(slices, count) || !pointer_valid(learning_rate, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const auto blocks_for = [](const scalecom_slices& s) { return ceil_div(s.size, kThreads); };
  return launch_lists(slices, count, blocks_for, [&](const auto& list, unsigned blocks) {
    return start_kernel(descend, blocks, kThreads, stream, list, learning_rate);
  });
}

}  // extern "C"
