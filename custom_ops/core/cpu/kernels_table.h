// Closes each kernels_*.cc: the inner loops for the four gradient types.
#include "core/cpu/exact.h"
#include "core/cpu/finish.h"
#include "core/cpu/select.h"

constexpr Kernels table(const char* isa) {
  return {isa,
          {select<float>, select<float16>, select<bfloat16>, select<double>},
          {check<float>, check<float16>, check<bfloat16>, check<double>},
          {filter<float>, filter<float16>, filter<bfloat16>, filter<double>},
          {scatter<float>, scatter<float16>, scatter<bfloat16>, scatter<double>},
          {count<float>, count<float16>, count<bfloat16>, count<double>},
          {emit<float>, emit<float16>, emit<bfloat16>, emit<double>}};
}
