// The inner loops for AVX2. The target is set here, for what follows, so that no build
// needs flags for single files; shared headers come first, or their inline functions would
// be compiled for this target and linked into code that runs elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "core/cpu/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

namespace scalecom {
namespace avx2 {

#include "core/cpu/simd_avx2.h"

#include "core/cpu/kernels_table.h"

}  // namespace avx2

#if defined(__clang__)
#pragma clang attribute pop
#endif

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels = avx2::table("avx2");
  return kernels;
}

}  // namespace scalecom

#endif  // defined(__x86_64__)
