// __nv_bfloat16 on the CPU; see cuda_runtime.h beside this.
#ifndef SCALECOM_TESTS_CUDA_ON_CPU_CUDA_BF16_H_
#define SCALECOM_TESTS_CUDA_ON_CPU_CUDA_BF16_H_

#include "cuda_runtime.h"
#include "tests/small_float.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 v) {
  return static_cast<float>(test::small_float_decode(test::kBfloat16, v.bits));
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  return {test::small_float_encode(test::kBfloat16, v)};
}

#endif  // SCALECOM_TESTS_CUDA_ON_CPU_CUDA_BF16_H_
