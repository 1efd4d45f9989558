// The inner loops for any processor.
#include "core/cpu/kernels.h"

// How vectors wider than a register are passed: between inline functions, none of which is outside.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace scalecom {
namespace portable {

#include "core/cpu/simd_portable.h"

#include "core/cpu/kernels_table.h"

}  // namespace portable

const Kernels& portable_kernels() {
  static constexpr Kernels kernels = portable::table("portable");
  return kernels;
}

}  // namespace scalecom
