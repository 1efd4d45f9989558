// 16-bit floating-point numbers by their definition, in double precision: the reference
// for the core's bit manipulation.
#ifndef SCALECOM_TESTS_SMALL_FLOAT_H_
#define SCALECOM_TESTS_SMALL_FLOAT_H_

#include <math.h>
#include <stdint.h>

#include <algorithm>

namespace test {

struct SmallFloat {
  int exponent_bits;
  int fraction_bits;
};
constexpr SmallFloat kFloat16 = {5, 10};
constexpr SmallFloat kBfloat16 = {8, 7};

inline double small_float_decode(SmallFloat f, uint16_t bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = (bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * ldexp(fraction, 1 - bias - f.fraction_bits);
  return sign * ldexp(fraction + (1 << f.fraction_bits), exponent - bias - f.fraction_bits);
}

// Nearest, ties to even; a finite value becomes at most the largest finite one.
inline uint16_t small_float_encode(SmallFloat f, double value) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const uint16_t infinity = static_cast<uint16_t>(((1 << f.exponent_bits) - 1) << f.fraction_bits);
  if (isnan(value)) return sign | infinity | static_cast<uint16_t>(1 << (f.fraction_bits - 1));
  if (isinf(value)) return sign | infinity;
  const double magnitude = fabs(value);
  if (magnitude == 0) return sign;
  int exponent = std::max(ilogb(magnitude), 1 - bias);
  const int64_t significand =
      static_cast<int64_t>(nearbyint(ldexp(magnitude, f.fraction_bits - exponent)));
  // A significand rounded up to the next power of two carries into the exponent.
  const int64_t bits = (int64_t{exponent + bias - 1} << f.fraction_bits) + significand;
  return sign | static_cast<uint16_t>(std::min<int64_t>(bits, infinity - 1));
}

}  // namespace test

#endif  // SCALECOM_TESTS_SMALL_FLOAT_H_
