// Which instruction set the CPU functions use.
#include <stdlib.h>
#include <string.h>

#include "core/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace scalecom {
namespace {

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Not every compiler's __builtin_cpu_supports knows F16C.
bool has_avx2() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const Kernels& choose() {
#if defined(__x86_64__)
  const char* asked = getenv("SCALECOM_ISA");
  const bool portable = asked != nullptr && strcmp(asked, "portable") == 0;
  const bool avx2 = asked != nullptr && strcmp(asked, "avx2") == 0;
  __builtin_cpu_init();
  if (!portable && !avx2 && has_avx512()) return avx512_kernels();
  if (!portable && has_avx2()) return avx2_kernels();
#endif
  return portable_kernels();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace scalecom
