// The inner loops for any processor.
#include "core/cpu/kernels.h"

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
