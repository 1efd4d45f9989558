// Argument checks shared by the CPU and CUDA entry points.
#ifndef SCALECOM_CORE_VALIDATE_H_
#define SCALECOM_CORE_VALIDATE_H_

#include <stddef.h>

#include "core/layout.h"
#include "core/types.h"

namespace scalecom {

// Compared so that NaN fails.
inline bool beta_valid(float beta) { return beta > 0.0f && beta <= 1.0f; }
inline bool limit_valid(float limit) { return limit > 0.0f; }

inline bool layout_valid(const scalecom_tensor& t) {
  if (t.offset_bytes != 1 && t.offset_bytes != 2 && t.offset_bytes != 4) return false;
  if (t.elements < 0 || t.chunk_size < 1) return false;
  if (t.chunk_size > int64_t{1} << (8 * t.offset_bytes)) return false;
  // Byte addresses of the widest type must not overflow.
  if (t.elements > INT64_MAX / 8) return false;
  if (t.chunk_keep < 1 || t.chunk_keep > t.chunk_size) return false;
  const int64_t tail = t.elements % t.chunk_size;
  return tail == 0 || (t.tail_keep >= 1 && t.tail_keep <= minimum(tail, t.chunk_keep));
}

inline bool layouts_valid(const scalecom_tensor* tensors, int64_t count) {
  if (count < 0 || (count > 0 && tensors == nullptr)) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (!layout_valid(tensors[i])) return false;
  }
  return true;
}

// Which pointers a function reads or writes.
enum Need : uint32_t {
  kGradient = 1,
  kResidual = 2,
  kOffsets = 4,
  kValues = 8,
  kReduced = 16,
  kOutput = 32,
  kCompensated = 64,
};

inline bool pointer_valid(const void* pointer, int64_t alignment) {
  return pointer != nullptr &&
         reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0;
}

inline bool flag_valid(const uint32_t* nonfinite, int32_t wire_type, const void* flag) {
  return wire_type_valid(wire_type) && pointer_valid(nonfinite, 4) &&
         pointer_valid(flag, type_bytes(wire_type));
}

inline bool tensor_valid(const scalecom_tensor& t, uint32_t needs, int32_t gradient_type,
                         int32_t wire_type) {
  if (!layout_valid(t)) return false;
  if (t.elements == 0) return true;
  const int64_t dense = type_bytes(gradient_type);
  const int64_t wire = type_bytes(wire_type);
  // Only where it is as wide may p take the gradient's place.
  const bool in_place =
      (needs & kGradient) && (needs & kCompensated) && t.compensated == t.gradient;
  if (in_place && gradient_type != SCALECOM_FLOAT32) return false;
  return (!(needs & kGradient) || pointer_valid(t.gradient, dense)) &&
         (!(needs & kResidual) || pointer_valid(t.residual, 4)) &&
         (!(needs & kCompensated) || pointer_valid(t.compensated, 4)) &&
         (!(needs & kOffsets) || pointer_valid(t.offsets, t.offset_bytes)) &&
         (!(needs & kValues) || pointer_valid(t.values, wire)) &&
         (!(needs & kReduced) || pointer_valid(t.reduced, wire)) &&
         (!(needs & kOutput) || pointer_valid(t.output, dense));
}

inline bool tensors_valid(const scalecom_tensor* tensors, int64_t count, uint32_t needs,
                          int32_t gradient_type = SCALECOM_FLOAT32,
                          int32_t wire_type = SCALECOM_FLOAT32) {
  if (count < 0 || (count > 0 && tensors == nullptr)) return false;
  if (!gradient_type_valid(gradient_type) || !wire_type_valid(wire_type)) return false;
  int64_t elements = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!tensor_valid(tensors[i], needs, gradient_type, wire_type)) return false;
    if (tensors[i].elements > INT64_MAX / 8 - elements) return false;
    elements += tensors[i].elements;
  }
  return true;
}

inline bool slices_valid(const scalecom_slices* slices, int64_t count) {
  if (count < 0 || (count > 0 && slices == nullptr)) return false;
  for (int64_t i = 0; i < count; ++i) {
    const scalecom_slices& s = slices[i];
    if (s.elements < 0 || s.size < 0 || s.size > INT64_MAX / 8) return false;
    if (s.size == 0) continue;
    if (s.elements > 0 && !pointer_valid(s.variable, 4)) return false;
    if (!pointer_valid(s.indices, 8) || !pointer_valid(s.values, 4)) return false;
  }
  return true;
}

// Selection by chunks sorts each chunk's few; exact selection sees one chunk.
inline bool chunk_selection_valid(const scalecom_tensor* tensors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (tensors[i].chunk_keep > SCALECOM_MAX_CHUNK_KEEP) return false;
  }
  return true;
}

inline bool exact_selection_valid(const scalecom_tensor* tensors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const scalecom_tensor& t = tensors[i];
    if (t.chunk_size != maximum(1, t.elements)) return false;
    if (t.elements > UINT32_MAX) return false;  // counters are uint32
  }
  return true;
}

}  // namespace scalecom

#endif  // SCALECOM_CORE_VALIDATE_H_
