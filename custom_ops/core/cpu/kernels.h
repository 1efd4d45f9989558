// The inner loops of the CPU functions, compiled once for each instruction set.
//
// Elements [begin, end) below count from the start of the tensor; a function returns true
// if it met a NaN or an infinity.
#ifndef SCALECOM_CORE_CPU_KERNELS_H_
#define SCALECOM_CORE_CPU_KERNELS_H_

#include <stddef.h>

#include "core/cpu/number.h"
#include "core/radix.h"

namespace scalecom {

// Blocks of this many elements are scattered at a time: they fit the L1 cache, and begin at an
// aligned address where the tensor does.
constexpr int64_t kBlock = 1024;

// Offsets that a rule selects in chunks [begin, end).
using SelectLoop = bool (*)(const scalecom_tensor&, int64_t begin, int64_t end);

// The loops for one gradient type. Those that read a gradient write p.
struct Loops {
  // The loop of a rule that looks at one chunk at a time; null for any other.
  SelectLoop (*select)(int32_t selection);
  bool (*compensate)(const scalecom_tensor&, int64_t begin, int64_t end);
  // Adds all elements to the first level's bins[].
  bool (*count_first)(const scalecom_tensor&, int64_t begin, int64_t end, uint32_t* bins);
  // Writes the output, past the cache if `stream`; begin is a multiple of kBlock.
  void (*scatter)(const scalecom_tensor&, int64_t begin, int64_t end, int32_t wire_type,
                  bool stream);
};

struct Kernels {
  const char* isa;
  // Adds to the level's bins[] the elements whose key agrees with `prefix` above the level's bits.
  void (*count_next)(const scalecom_tensor&, int64_t begin, int64_t end, int level, int32_t prefix,
                     uint32_t* bins);
  // Writes the indices with key > threshold, and the first `ties` of those equal to it, as
  // entries from `entry` on.
  void (*emit)(const scalecom_tensor&, int64_t begin, int64_t end, int32_t threshold, int64_t ties,
               int64_t entry);
  void (*filter)(const scalecom_tensor&, int64_t begin, int64_t end, float beta);
  Loops of[kElementTypeCount];  // null where no gradient has the type
};

const Kernels& portable_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#endif

// The best that this processor runs.
const Kernels& kernels();

}  // namespace scalecom

#endif  // SCALECOM_CORE_CPU_KERNELS_H_
