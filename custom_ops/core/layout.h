// Index arithmetic of a tensor cut into chunks, shared by the CPU and CUDA code and tested
// on the host. Everything is 64-bit: a tensor may have more than 2^31 elements.
#ifndef SCALECOM_CORE_LAYOUT_H_
#define SCALECOM_CORE_LAYOUT_H_

#include <stdint.h>

#include "core/types.h"
#include "scalecom/scalecom.h"

namespace scalecom {

// Elements are ordered by key: the bits of |p| as an integer. Infinity has this key; every
// NaN, whatever its payload, has the next.
constexpr int32_t kInfinityKey = 0x7f800000;
constexpr int32_t kNanKey = kInfinityKey + 1;

SCALECOM_HD int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
SCALECOM_HD int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

// Without the overflow of (a + b - 1) / b near the top of the range.
SCALECOM_HD int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

SCALECOM_HD int64_t chunk_count(const scalecom_tensor& t) {
  return ceil_div(t.elements, t.chunk_size);
}

SCALECOM_HD int64_t chunk_length(const scalecom_tensor& t, int64_t chunk) {
  return minimum(t.chunk_size, t.elements - chunk * t.chunk_size);
}

SCALECOM_HD int64_t chunk_kept(const scalecom_tensor& t, int64_t chunk) {
  return chunk_length(t, chunk) == t.chunk_size ? t.chunk_keep : t.tail_keep;
}

SCALECOM_HD int64_t kept_count(const scalecom_tensor& t) {
  const int64_t full = t.elements / t.chunk_size;
  return full * t.chunk_keep + (t.elements % t.chunk_size != 0 ? t.tail_keep : 0);
}

// Stops at a width without a case of its own. On a GPU it must do that no entry point lets one
// pass: there a trap, or a promise that this is not reached, changes the registers of every kernel.
SCALECOM_HD void require_width([[maybe_unused]] const scalecom_tensor& t,
                               [[maybe_unused]] int64_t offset_bytes) {
#if !defined(__CUDA_ARCH__)
  if (t.offset_bytes != offset_bytes) stop();
#endif
}

SCALECOM_HD uint32_t offset_load(const scalecom_tensor& t, int64_t entry) {
  switch (t.offset_bytes) {
    case 1: return static_cast<const uint8_t*>(t.offsets)[entry];
    case 2: return static_cast<const uint16_t*>(t.offsets)[entry];
    default: require_width(t, 4); return static_cast<const uint32_t*>(t.offsets)[entry];
  }
}

SCALECOM_HD void offset_store(const scalecom_tensor& t, int64_t entry, uint32_t offset) {
  switch (t.offset_bytes) {
    case 1: static_cast<uint8_t*>(t.offsets)[entry] = static_cast<uint8_t>(offset); break;
    case 2: static_cast<uint16_t*>(t.offsets)[entry] = static_cast<uint16_t>(offset); break;
    default: require_width(t, 4); static_cast<uint32_t*>(t.offsets)[entry] = offset;
  }
}

// Element that an entry of chunk `chunk` points at, or -1 when the offset is corrupt.
SCALECOM_HD int64_t entry_element(const scalecom_tensor& t, int64_t chunk, int64_t entry) {
  const int64_t offset = offset_load(t, entry);
  return offset < chunk_length(t, chunk) ? chunk * t.chunk_size + offset : -1;
}

// First entry in [begin, end) whose offset is at least `offset`; offsets increase there.
SCALECOM_HD int64_t entry_lower_bound(const scalecom_tensor& t, int64_t begin, int64_t end,
                                      int64_t offset) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (static_cast<int64_t>(offset_load(t, middle)) < offset) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Entries of `chunk` that can point into elements [begin, end): a range [first, last). Only
// where offsets increase can it be narrower than the chunk.
struct EntryRange {
  int64_t first;
  int64_t last;
};

SCALECOM_HD EntryRange chunk_entries(const scalecom_tensor& t, int64_t chunk, int64_t begin,
                                     int64_t end) {
  const int64_t first = chunk * t.chunk_keep;
  const int64_t last = first + chunk_kept(t, chunk);
  if (t.chunk_keep <= SCALECOM_MAX_CHUNK_KEEP) return {first, last};
  const int64_t start = chunk * t.chunk_size;
  return {entry_lower_bound(t, first, last, begin - start),
          entry_lower_bound(t, first, last, end - start)};
}

// A list of tensors as one range of units (chunk groups, blocks of elements): tensor i owns
// units [first[i], first[i + 1]). Finds the tensor of a unit.
SCALECOM_HD int64_t unit_owner(const int64_t* first, int64_t count, int64_t unit) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (first[middle] <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace scalecom

#endif  // SCALECOM_CORE_LAYOUT_H_
