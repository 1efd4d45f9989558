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
  __device__ Packed() {}
};

template <typename T>
__device__ __forceinline__ Vector load_vector(const T* p) {
  Packed<T> packed;
#pragma unroll
  for (int i = 0; i < Packed<T>::kWords; ++i) {
    packed.word[i] = reinterpret_cast<const typename Packed<T>::Word*>(p)[i];
  }
  Vector v;
#pragma unroll
  for (int i = 0; i < kVector; ++i) v.lane[i] = to_float(packed.lane[i]);
  return v;
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

// p = residual + gradient of a tensor, which every pass over a gradient writes.
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

  // Makes p of elements [at, at + 4), and their keys, -1 outside [begin, end). `at` is a multiple
  // of 4: chunks need not begin at one, vectors do. Where p takes the gradient's place, who
  // makes the neighbours in a vector may have made them already: nobody uses what it reads there.
  __device__ __forceinline__ void keys(int64_t at, int64_t begin, int64_t end,
                                       int32_t (&keys)[kVector]) const {
    if (aligned && at + kVector <= elements) {
      const Vector m = load_vector(residual + at);
      const Vector g = load_vector(gradient + at);
      Vector p;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        p.lane[i] = __fadd_rn(m.lane[i], g.lane[i]);
        const bool inside = at + i >= begin && at + i < end;
        keys[i] = inside ? key_of(p.lane[i]) : -1;
      }
      if (at >= begin && at + kVector <= end) {
        store_vector(compensated + at, p);
        return;
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (keys[i] >= 0) compensated[at + i] = p.lane[i];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int64_t e = at + i;
      keys[i] = -1;
      if (e < begin || e >= end) continue;
      const float p = __fadd_rn(residual[e], to_float(gradient[e]));
      compensated[e] = p;
      keys[i] = key_of(p);
    }
  }
};

__device__ __forceinline__ void raise_flag(uint32_t* nonfinite, int32_t highest) {
  if (highest >= kInfinityKey) atomicOr(nonfinite, 1u);
}

}  // namespace cuda
}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_DEVICE_CUH_
