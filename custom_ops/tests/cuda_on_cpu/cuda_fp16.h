// __half on the CPU; see cuda_runtime.h beside this.
#ifndef SCALECOM_TESTS_CUDA_ON_CPU_CUDA_FP16_H_
#define SCALECOM_TESTS_CUDA_ON_CPU_CUDA_FP16_H_

#include "cuda_runtime.h"
#include "tests/small_float.h"

struct __half {
  uint16_t bits;
};

inline float __half2float(__half v) {
  return static_cast<float>(test::small_float_decode(test::kFloat16, v.bits));
}
inline __half __float2half_rn(float v) { return {test::small_float_encode(test::kFloat16, v)}; }

#endif  // SCALECOM_TESTS_CUDA_ON_CPU_CUDA_FP16_H_
