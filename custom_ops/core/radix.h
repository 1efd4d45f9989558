// The radix of exact selection, shared by the CPU and CUDA code.
//
// Three passes count elements by 10, 11 and 10 bits of their key, each among those that
// agree with the digits found before; that gives the k-th largest key. A last pass writes
// the indices above it, and the first few of those equal to it.
#ifndef SCALECOM_CORE_RADIX_H_
#define SCALECOM_CORE_RADIX_H_

#include "core/layout.h"

namespace scalecom {

struct RadixLevel {
  int shift;  // the level's digit is bits [shift, shift + bits) of the key
  int bits;
  int first;  // of its bins among all levels'
};

constexpr int kRadixLevelCount = 3;
constexpr int kRadixBins = 4096;

SCALECOM_HD constexpr RadixLevel radix_level(int level) {
  return level == 0   ? RadixLevel{21, 10, 0}
         : level == 1 ? RadixLevel{10, 11, 1024}
                      : RadixLevel{0, 10, 3072};
}

// Does a key agree with `prefix` above the level's digit? Both are at least 0.
SCALECOM_HD bool radix_agrees(RadixLevel level, int32_t key, int32_t prefix) {
  return static_cast<uint32_t>(key ^ prefix) >> (level.shift + level.bits) == 0;
}

SCALECOM_HD int radix_digit(RadixLevel level, int32_t key) {
  return (key >> level.shift) & ((1 << level.bits) - 1);
}

}  // namespace scalecom

#endif  // SCALECOM_CORE_RADIX_H_
