// 16-bit floating-point numbers on the CPU, one at a time. Conversions round to nearest
// even; a finite value stays finite (it saturates), NaN and infinity pass.
#ifndef SCALECOM_CORE_CPU_NUMBER_H_
#define SCALECOM_CORE_CPU_NUMBER_H_

#include <stdint.h>
#include <string.h>

#include "core/types.h"

namespace scalecom {

struct float16 {
  uint16_t bits;
};

struct bfloat16 {
  uint16_t bits;
};

// The types of the table in scalecom.h.
struct CpuElements {
  using float32 = float;
  using float16 = scalecom::float16;
  using bfloat16 = scalecom::bfloat16;
  using float64 = double;
};

inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(float value) { return value; }

inline float to_float(double value) { return static_cast<float>(value); }

inline float to_float(bfloat16 value) { return bits_float(uint32_t{value.bits} << 16); }

inline float to_float(float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t fraction = value.bits & 0x3ffu;
  if (exponent == 0) {
    // Subnormal: fraction * 2^-24, exact in float32.
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return bits_float(sign | float_bits(magnitude));
  }
  if (exponent == 31) {
    // A NaN comes out quiet, as the hardware conversions make it.
    const uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
    return bits_float(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  return bits_float(sign | ((exponent + 112) << 23) | (fraction << 13));
}

inline void from_float(float value, float* out) { *out = value; }

inline void from_float(float value, double* out) { *out = static_cast<double>(value); }

inline void from_float(float value, bfloat16* out) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) {
    out->bits = static_cast<uint16_t>(sign | 0x7fc0u);
    return;
  }
  uint32_t rounded = (magnitude + 0x7fffu + ((magnitude >> 16) & 1u)) >> 16;
  if (magnitude < 0x7f800000u && rounded > 0x7f7fu) rounded = 0x7f7fu;
  out->bits = static_cast<uint16_t>(sign | rounded);
}

inline void from_float(float value, float16* out) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t rounded;
  if (magnitude > 0x7f800000u) {
    rounded = 0x7e00u;
  } else if (magnitude == 0x7f800000u) {
    rounded = 0x7c00u;
  } else if (magnitude >= 0x477fe000u) {
    rounded = 0x7bffu;  // 65504 and above
  } else if (magnitude >= 0x38800000u) {
    const uint32_t even = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    rounded = (even >> 13) - (112u << 10);
    if (rounded > 0x7bffu) rounded = 0x7bffu;
  } else if (magnitude < 0x33000000u) {
    rounded = 0;  // under half of the smallest subnormal
  } else {
    // Subnormal: shift the significand, rounding to nearest even.
    const uint32_t shift = 126u - (magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t floor = significand >> shift;
    const uint32_t rest = significand & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1);
    rounded = floor + (rest > half || (rest == half && (floor & 1u)));
  }
  out->bits = static_cast<uint16_t>(sign | rounded);
}

// Entry `index` of an array in the type that travels.
inline float wire_load(const void* array, int32_t type, int64_t index) {
  return with_wire_type<CpuElements>(
      type, [=](auto zero) { return to_float(static_cast<const decltype(zero)*>(array)[index]); });
}

inline void wire_store(void* array, int32_t type, int64_t index, float value) {
  with_wire_type<CpuElements>(
      type, [=](auto zero) { from_float(value, static_cast<decltype(zero)*>(array) + index); });
}

// A finite value as gather limits it before it travels.
inline float wire_limited(float value, float limit) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u || magnitude <= float_bits(limit)) return value;
  return bits_float((bits & 0x80000000u) | float_bits(limit));
}

// What arrives of a value that travels.
inline float wire_round(float value, int32_t type) {
  return with_wire_type<CpuElements>(type, [=](auto sent) {
    from_float(value, &sent);
    return to_float(sent);
  });
}

}  // namespace scalecom

#endif  // SCALECOM_CORE_CPU_NUMBER_H_
