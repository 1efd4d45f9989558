// What scalecom.h promises, worked out slowly in double precision. A float32 operation is
// the double one rounded to float32: for sums and products of two float32 that is exact.
// Subnormal numbers are zeros.
#ifndef SCALECOM_TESTS_REFERENCE_H_
#define SCALECOM_TESTS_REFERENCE_H_

#include <float.h>

#include <vector>

#include "tests/tensor_list.h"

namespace test {

inline float flushed(double value) {
  const float rounded = static_cast<float>(value);
  return fabsf(rounded) < FLT_MIN ? copysignf(0.0f, rounded) : rounded;
}

inline float add(float a, float b) { return flushed(double{flushed(a)} + double{flushed(b)}); }
inline float subtract(float a, float b) { return add(a, -b); }
inline float multiply(float a, float b) { return flushed(double{flushed(a)} * double{flushed(b)}); }

// Magnitude as the order sees it: every NaN above infinity, all alike.
inline double rank_of(float p) {
  if (isnan(p)) return 3e39;
  if (isinf(p)) return 2e39;
  return fabs(double{p});
}

inline int64_t offset_at(const scalecom_tensor& t, int64_t entry) {
  const unsigned char* bytes =
      static_cast<const unsigned char*>(t.offsets) + entry * t.offset_bytes;
  int64_t offset = 0;
  for (int64_t i = 0; i < t.offset_bytes; ++i) offset |= int64_t{bytes[i]} << (8 * i);
  return offset;
}

inline void offset_put(const scalecom_tensor& t, int64_t entry, int64_t offset) {
  unsigned char* bytes = static_cast<unsigned char*>(t.offsets) + entry * t.offset_bytes;
  for (int64_t i = 0; i < t.offset_bytes; ++i) {
    bytes[i] = static_cast<unsigned char>(offset >> (8 * i));
  }
}

// Calls visit(start, length, first entry, kept) for each chunk.
template <typename Visit>
void for_each_chunk(const scalecom_tensor& t, Visit visit) {
  int64_t entry = 0;
  for (int64_t start = 0; start < t.elements; start += t.chunk_size) {
    const int64_t length = std::min(t.chunk_size, t.elements - start);
    const int64_t kept = length == t.chunk_size ? t.chunk_keep : t.tail_keep;
    visit(start, length, entry, kept);
    entry += kept;
  }
}

inline uint32_t reference_compensate(TensorList& b) {
  uint32_t nonfinite = 0;
  for (const scalecom_tensor& t : b.tensors) {
    for (int64_t i = 0; i < t.elements; ++i) {
      t.compensated[i] = add(t.residual[i], load(t.gradient, b.gradient_type, i));
      if (!isfinite(t.compensated[i])) nonfinite = 1;
    }
  }
  return nonfinite;
}

inline uint32_t reference_select(TensorList& b, bool exact_selection) {
  const uint32_t nonfinite = reference_compensate(b);
  for (const scalecom_tensor& t : b.tensors) {
    for_each_chunk(t, [&](int64_t start, int64_t length, int64_t entry, int64_t kept) {
      std::vector<int64_t> order(static_cast<size_t>(length));
      std::vector<double> rank(static_cast<size_t>(length));
      for (int64_t i = 0; i < length; ++i) {
        order[static_cast<size_t>(i)] = i;
        rank[static_cast<size_t>(i)] = rank_of(t.compensated[start + i]);
      }
      std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                        [&](int64_t x, int64_t y) {
                          const double rx = rank[static_cast<size_t>(x)];
                          const double ry = rank[static_cast<size_t>(y)];
                          return rx != ry ? rx > ry : x < y;
                        });
      if (exact_selection) std::sort(order.begin(), order.begin() + kept);
      for (int64_t i = 0; i < kept; ++i) offset_put(t, entry + i, order[static_cast<size_t>(i)]);
    });
  }
  return nonfinite;
}

inline void reference_gather(TensorList& b, float limit) {
  for (const scalecom_tensor& t : b.tensors) {
    for_each_chunk(t, [&](int64_t start, int64_t length, int64_t entry, int64_t kept) {
      for (int64_t i = entry; i < entry + kept; ++i) {
        const int64_t offset = offset_at(t, i);
        const double p = offset < length ? t.compensated[start + offset] : NAN;
        const double most = limit;
        store(t.values, b.wire_type, i, isfinite(p) ? std::max(-most, std::min(most, p)) : p);
        if (offset >= length) continue;
        float* unsent = &t.compensated[start + offset];
        *unsent = subtract(*unsent, load(t.values, b.wire_type, i));
      }
    });
  }
}

inline void reference_filter(TensorList& b, float beta, bool finite) {
  if (beta == 1.0f && finite) return;
  for (const scalecom_tensor& t : b.tensors) {
    for (int64_t i = 0; i < t.elements; ++i) {
      if (!finite) {
        t.compensated[i] = t.residual[i];
        continue;
      }
      t.compensated[i] =
          add(multiply(subtract(1.0f, beta), t.residual[i]), multiply(beta, t.compensated[i]));
    }
  }
}

inline void reference_scatter(TensorList& b) {
  for (const scalecom_tensor& t : b.tensors) {
    for (int64_t i = 0; i < t.elements; ++i) store(t.output, b.gradient_type, i, 0.0);
    for_each_chunk(t, [&](int64_t start, int64_t length, int64_t entry, int64_t kept) {
      for (int64_t i = entry; i < entry + kept; ++i) {
        const int64_t offset = offset_at(t, i);
        if (offset >= length) continue;
        store(t.output, b.gradient_type, start + offset, load(t.reduced, b.wire_type, i));
      }
    });
  }
}

}  // namespace test

#endif  // SCALECOM_TESTS_REFERENCE_H_
