// What every kernel needs: numbers, keys, and loads of four elements at a time.
#ifndef SCALECOM_CORE_CUDA_DEVICE_CUH_
#define SCALECOM_CORE_CUDA_DEVICE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/cuda/policy.h"
#include "core/layout.h"
#include "core/types.h"

namespace scalecom {
// Apart from the CPU's functions of the same names, which the emulated kernels are linked with.
inline namespace cuda {

constexpr int kThreads = Policy::kThreads;
constexpr int kVector = Policy::kVector;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// A warp can reduce integers in one instruction from compute capability 8.0 on. The emulator knows
// that, too, and tests the other way where it is told to (see the Makefile).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define SCALECOM_REDUCE_BY_SHUFFLES
#endif

#if !defined(SCALECOM_REDUCE_BY_SHUFFLES)
__device__ __forceinline__ int32_t warp_max(int32_t v) { return __reduce_max_sync(kAllLanes, v); }
__device__ __forceinline__ uint32_t warp_min(uint32_t v) { return __reduce_min_sync(kAllLanes, v); }
__device__ __forceinline__ uint32_t warp_sum(uint32_t v) { return __reduce_add_sync(kAllLanes, v); }
#else
template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduced(T v, const Combine& combine) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    v = combine(v, __shfl_xor_sync(kAllLanes, v, step));
  }
  return v;
}
__device__ __forceinline__ int32_t warp_max(int32_t v) {
  return warp_reduced(v, [](int32_t a, int32_t b) { return max(a, b); });
}
__device__ __forceinline__ uint32_t warp_min(uint32_t v) {
  return warp_reduced(v, [](uint32_t a, uint32_t b) { return min(a, b); });
}
__device__ __forceinline__ uint32_t warp_sum(uint32_t v) {
  return warp_reduced(v, [](uint32_t a, uint32_t b) { return a + b; });
}
#endif

// The types of the table in scalecom.h.
struct CudaElements {
  using float32 = float;
  using float16 = __half;
  using bfloat16 = __nv_bfloat16;
  using float64 = double;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(double v) { return __double2float_rn(v); }

// A finite value stays finite: it saturates.
template <typename T>
__device__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ double from_float<double>(float v) {
  return v;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
  return __float2half_rn(isfinite(v) ? fminf(fmaxf(v, -65504.0f), 65504.0f) : v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  constexpr float kMost = 3.3895313892515355e38f;
  return __float2bfloat16_rn(isfinite(v) ? fminf(fmaxf(v, -kMost), kMost) : v);
}

__device__ __forceinline__ float wire_load(const void* array, int32_t type, int64_t i) {
  return with_wire_type<CudaElements>(
      type, [=](auto zero) { return to_float(static_cast<const decltype(zero)*>(array)[i]); });
}

__device__ __forceinline__ void wire_store(void* array, int32_t type, int64_t i, float v) {
  with_wire_type<CudaElements>(type, [=](auto zero) {
    static_cast<decltype(zero)*>(array)[i] = from_float<decltype(zero)>(v);
  });
}

// A finite value as gather limits it before it travels.
__device__ __forceinline__ float wire_limited(float v, float limit) {
  return isfinite(v) ? fminf(fmaxf(v, -limit), limit) : v;
}

// What arrives of a value that travels.
__device__ __forceinline__ float wire_round(float v, int32_t type) {
  return with_wire_type<CudaElements>(
      type, [=](auto zero) { return to_float(from_float<decltype(zero)>(v)); });
}

__device__ __forceinline__ int32_t key_of(float p) {
  return min(__float_as_int(p) & 0x7fffffff, kNanKey);
}

// Four elements in float32.
struct Vector {
  float lane[kVector];
};

// In memory: one or two words of up to 128 bits.
template <typename T>
struct Packed {
  using Word = typename std::conditional<sizeof(T) == 2, uint2, uint4>::type;
  static constexpr int kWords = sizeof(T) * kVector / sizeof(Word);
  union {
    Word word[kWords];
    T lane[kVector];
  };
  __device__ Packed() : word{} {}
};

template <typename T>
__device__ __forceinline__ Vector unpacked(const Packed<T>& packed) {
  Vector v;
#pragma unroll
  for (int i = 0; i < kVector; ++i) v.lane[i] = to_float(packed.lane[i]);
  return v;
}

template <typename T>
__device__ __forceinline__ Packed<T> packed_vector(const T* p) {
  Packed<T> packed;
#pragma unroll
  for (int i = 0; i < Packed<T>::kWords; ++i) {
    packed.word[i] = reinterpret_cast<const typename Packed<T>::Word*>(p)[i];
  }
  return packed;
}

// Of what nobody reads again before it is overwritten: the caches need not keep it.
template <typename T>
__device__ __forceinline__ Packed<T> stream_vector(const T* p) {
  Packed<T> packed;
#pragma unroll
  for (int i = 0; i < Packed<T>::kWords; ++i) {
    packed.word[i] = __ldcs(reinterpret_cast<const typename Packed<T>::Word*>(p) + i);
  }
  return packed;
}

template <typename T>
__device__ __forceinline__ void store_vector(T* p, const Vector& v) {
  Packed<T> packed;
#pragma unroll
  for (int i = 0; i < kVector; ++i) packed.lane[i] = from_float<T>(v.lane[i]);
  // An intrinsic: the compiler takes a plain store of four members apart.
#pragma unroll
  for (int i = 0; i < Packed<T>::kWords; ++i) {
    __stwb(reinterpret_cast<typename Packed<T>::Word*>(p) + i, packed.word[i]);
  }
}

template <typename T>
__device__ __forceinline__ bool vector_aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(typename Packed<T>::Word) == 0;
}

// Which elements of a batch count, from its first on: all, or those of [begin, end).
struct All {
  __device__ static constexpr bool any(int) { return true; }    // of the vector at an element
  __device__ static constexpr bool every(int) { return true; }  // the same
  __device__ static constexpr bool has(int) { return true; }    // the element
};
struct Range {
  int begin;
  int end;
  __device__ __forceinline__ bool any(int at) const { return at + kVector > begin && at < end; }
  __device__ __forceinline__ bool every(int at) const { return at >= begin && at + kVector <= end; }
  __device__ __forceinline__ bool has(int at) const { return at >= begin && at < end; }
};

// Elements from `base` on, of [begin, end), as far as a batch can reach.
__device__ __forceinline__ Range range_from(int64_t base, int64_t begin, int64_t end) {
  return {static_cast<int>(maximum(begin - base, 0)),
          static_cast<int>(minimum(end - base, int64_t{1} << 30))};
}

// p = residual + gradient of a tensor, which every pass over a gradient writes.
//
// Chunks need not begin at a vector (a multiple of 4 elements). Where p takes the gradient's place,
// who makes the neighbours in a vector may have made them already: nobody uses what it reads there.
template <typename T>
struct Compensation {
  const T* gradient;
  const float* residual;
  float* compensated;
  int64_t elements;
  bool aligned;

  __device__ explicit Compensation(const scalecom_tensor& t)
      : gradient(static_cast<const T*>(t.gradient)),
        residual(t.residual),
        compensated(t.compensated),
        elements(t.elements),
        aligned(vector_aligned(gradient) && vector_aligned(residual) &&
                vector_aligned(static_cast<const float*>(compensated))) {}

  // Whether all vectors with elements below `end` can be read whole.
  __device__ __forceinline__ bool interior(int64_t end) const {
    return aligned && ceil_div(end, kVector) * kVector <= elements;
  }

  // Makes p of kCount vectors of the interior, and calls visit(at, keys) with the keys of each, -1
  // where they do not count. The vectors begin `first`, `first + stride`, ... elements behind
  // `base`, which is where one begins. All loads are on their way before the first is used.
  template <int kCount, typename Counts, typename Visit>
  __device__ __forceinline__ void batch(int64_t base, int first, int stride, const Counts& counts,
                                        const Visit& visit) const {
    Packed<float> m[kCount];
    Packed<T> g[kCount];
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      const int at = first + v * stride;
      if (!counts.any(at)) continue;
      m[v] = stream_vector(residual + base + at);
      g[v] = stream_vector(gradient + base + at);
    }
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      const int at = first + v * stride;
      const Vector before = unpacked(m[v]);
      const Vector added = unpacked(g[v]);
      Vector p;
      int32_t keys[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        p.lane[i] = __fadd_rn(before.lane[i], added.lane[i]);
        keys[i] = counts.has(at + i) ? key_of(p.lane[i]) : -1;
      }
      if (counts.every(at)) {
        store_vector(compensated + base + at, p);
      } else if (counts.any(at)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (counts.has(at + i)) compensated[base + at + i] = p.lane[i];
        }
      }
      visit(at, keys);
    }
  }

  // The same of what is not interior, element by element.
  template <int kCount, typename Visit>
  __device__ __forceinline__ void edge(int64_t base, int first, int stride, const Range& counts,
                                       const Visit& visit) const {
#pragma unroll 1
    for (int v = 0; v < kCount; ++v) {
      const int at = first + v * stride;
      int32_t keys[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        keys[i] = -1;
        if (!counts.has(at + i)) continue;
        const int64_t e = base + at + i;
        const float p = __fadd_rn(residual[e], to_float(gradient[e]));
        compensated[e] = p;
        keys[i] = key_of(p);
      }
      visit(at, keys);
    }
  }
};

__device__ __forceinline__ void raise_flag(uint32_t* nonfinite, int32_t highest) {
  if (highest >= kInfinityKey) atomicOr(nonfinite, 1u);
}

}  // namespace cuda
}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_DEVICE_CUH_
