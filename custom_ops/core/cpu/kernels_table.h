// Closes each kernels_*.cc: the inner loops for every gradient type.
#include "core/cpu/compensate.h"
#include "core/cpu/exact.h"
#include "core/cpu/finish.h"
#include "core/cpu/select.h"

template <typename T, bool kGradient>
constexpr Loops loops() {
  if constexpr (kGradient) {
    return {select<T>, compensate<T>, count_first<T>, scatter<T>};
  } else {
    return {};
  }
}

constexpr Kernels table(const char* isa) {
#define SCALECOM_ROW(NAME, number, name, bytes, gradient, wire) \
  loops<CpuElements::name, gradient>(),
  return {isa, count_next, emit, filter, {SCALECOM_TYPES(SCALECOM_ROW)}};
#undef SCALECOM_ROW
}
