// The inner loops for AVX512. The target is set here, for what follows, so that no build
// needs flags for single files; shared headers come first, or their inline functions would
// be compiled for this target and linked into code that runs elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "core/cpu/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
// GCC 12's own intrinsics copy from a variable they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace scalecom {
namespace avx512 {

#include "core/cpu/simd_avx512.h"

#include "core/cpu/kernels_table.h"

}  // namespace avx512

#if defined(__clang__)
#pragma clang attribute pop
#endif

const Kernels& avx512_kernels() {
  static constexpr Kernels kernels = avx512::table("avx512");
  return kernels;
}

}  // namespace scalecom

#endif  // defined(__x86_64__)
