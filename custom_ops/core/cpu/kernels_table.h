// Closes each kernels_*.cc: the inner loops for every gradient type.
#include "core/cpu/exact.h"
#include "core/cpu/finish.h"
#include "core/cpu/select.h"

template <typename T, bool kGradient>
constexpr Loops loops() {
  if constexpr (kGradient) {
    return {select<T>, check<T>, filter<T>, scatter<T>, count<T>, emit<T>};
  } else {
    return {};
  }
}

constexpr Kernels table(const char* isa) {
#define SCALECOM_ROW(NAME, number, name, bytes, gradient, wire) \
  loops<CpuElements::name, gradient>(),
  return {isa, {SCALECOM_TYPES(SCALECOM_ROW)}};
#undef SCALECOM_ROW
}
