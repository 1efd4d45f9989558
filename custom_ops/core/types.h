// The element types and the rules of selection, from the tables in scalecom.h: what is known of
// each, and the only switches over them.
#ifndef SCALECOM_CORE_TYPES_H_
#define SCALECOM_CORE_TYPES_H_

#include <stdint.h>

#include "scalecom/scalecom.h"

#if defined(__CUDACC__)
#define SCALECOM_HD __host__ __device__ __forceinline__
#define SCALECOM_KERNEL __device__ __forceinline__
#else
#define SCALECOM_HD inline
#define SCALECOM_KERNEL inline
#endif

namespace scalecom {

struct ElementType {
  int32_t number;
  const char* name;
  int64_t bytes;
  bool gradient;
  bool wire;
};

#define SCALECOM_ROW(NAME, number, name, bytes, gradient, wire) \
  {SCALECOM_##NAME, #name, bytes, gradient, wire},
constexpr ElementType kElementTypes[] = {SCALECOM_TYPES(SCALECOM_ROW)};
#undef SCALECOM_ROW
constexpr int kElementTypeCount = sizeof kElementTypes / sizeof kElementTypes[0];

struct Selection {
  int32_t number;
  const char* name;
};

#define SCALECOM_ROW(NAME, number, name) {SCALECOM_##NAME, #name},
constexpr Selection kSelections[] = {SCALECOM_SELECTIONS(SCALECOM_ROW)};
#undef SCALECOM_ROW

constexpr bool types_are_numbered_by_row() {
  for (int i = 0; i < kElementTypeCount; ++i) {
    if (kElementTypes[i].number != i) return false;
  }
  return true;
}
static_assert(types_are_numbered_by_row(), "a type's number is its place in the table");

inline bool type_known(int32_t type) { return type >= 0 && type < kElementTypeCount; }
inline bool gradient_type_valid(int32_t type) {
  return type_known(type) && kElementTypes[type].gradient;
}
inline bool wire_type_valid(int32_t type) { return type_known(type) && kElementTypes[type].wire; }

// Of a known type.
inline int64_t type_bytes(int32_t type) { return kElementTypes[type].bytes; }

// Where no argument leads that the entry points let pass: a type or a width without a case. On a
// GPU a promise to the compiler, as a trap costs registers; the emulated kernels do stop.
[[noreturn]] SCALECOM_HD void stop() {
#if defined(__CUDA_ARCH__)
  __builtin_unreachable();
#else
  __builtin_trap();
#endif
}

// Returns the status of function(T{}), T being the C++ type of a gradient: `Elements` has one by
// the name of each row of the table.
template <typename Elements, typename Function>
int32_t with_gradient_type(int32_t type, const Function& function) {
  switch (type) {
#define SCALECOM_ROW(NAME, number, name, bytes, gradient, wire)              \
  case SCALECOM_##NAME:                                                      \
    if constexpr (gradient != 0) return function(typename Elements::name{}); \
    break;
    SCALECOM_TYPES(SCALECOM_ROW)
#undef SCALECOM_ROW
  }
  return SCALECOM_INVALID_ARGUMENT;
}

// Returns function(T{}), T being the C++ type of what travels, for a type that has been checked.
template <typename Elements, typename Function>
SCALECOM_KERNEL auto with_wire_type(int32_t type, const Function& function) {
  switch (type) {
#define SCALECOM_ROW(NAME, number, name, bytes, gradient, wire)          \
  case SCALECOM_##NAME:                                                  \
    if constexpr (wire != 0) return function(typename Elements::name{}); \
    break;
    SCALECOM_TYPES(SCALECOM_ROW)
#undef SCALECOM_ROW
  }
  stop();
}

}  // namespace scalecom

#endif  // SCALECOM_CORE_TYPES_H_
