// Exact selection on the CPU: the k largest |p| of each tensor, by counting (see radix.h).
// Reading four times needs 16 KiB of workspace a partition and no copy of a candidate.
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/select_exact.h"
#include "core/validate.h"

namespace scalecom {
namespace {

// Elements of a partition: its counters (16 KiB) are under 1 % of its gradient.
constexpr int64_t kPartition = int64_t{1} << 19;

struct Threshold {
  int32_t key = 0;
  int64_t ties;  // elements equal to key that are kept
};

// Takes the level's digit of the threshold: the bin, counted from the top, in which the
// `remaining`-th element lies. `counters` has one set of bins for each partition.
void descend(int level, const uint32_t* counters, int64_t partitions, Threshold* threshold) {
  const RadixLevel radix = radix_level(level);
  for (int bin = (1 << radix.bits) - 1;; --bin) {
    int64_t inside = 0;
    for (int64_t p = 0; p < partitions; ++p) inside += counters[p * kRadixBins + radix.first + bin];
    if (threshold->ties <= inside || bin == 0) {
      threshold->key |= bin << radix.shift;
      return;
    }
    threshold->ties -= inside;
  }
}

// Elements of a partition above the threshold, and equal to it.
void tally(const uint32_t* counters, int32_t key, int64_t* above, int64_t* equal) {
  *above = 0;
  *equal = 0;
  for (int level = 0; level < kRadixLevelCount; ++level) {
    const RadixLevel radix = radix_level(level);
    const int digit = radix_digit(radix, key);
    const uint32_t* bins = counters + radix.first;
    for (int bin = digit + 1; bin < 1 << radix.bits; ++bin) *above += bins[bin];
    *equal = bins[digit];
  }
}

int64_t partition_count(const scalecom_tensor& t) { return ceil_div(t.elements, kPartition); }

// One tensor, its partitions spread over the executor. Returns whether p has a NaN or an
// infinity.
bool select_tensor(const scalecom_tensor& t, int32_t type, uint32_t* counters,
                   const scalecom_executor* executor) {
  const int64_t partitions = partition_count(t);
  const auto end_of = [&](int64_t p) { return minimum((p + 1) * kPartition, t.elements); };
  uint32_t nonfinite = 0;
  Threshold threshold;
  threshold.ties = t.chunk_keep;
  for (int level = 0; level < kRadixLevelCount; ++level) {
    run_tasks(executor, partitions, [&](int64_t p) {
      uint32_t* bins = counters + p * kRadixBins + radix_level(level).first;
      memset(bins, 0, sizeof *bins << radix_level(level).bits);
      const int64_t begin = p * kPartition;
      if (level > 0) {
        kernels().count_next(t, begin, end_of(p), level, threshold.key, bins);
      } else if (kernels().of[type].count_first(t, begin, end_of(p), bins)) {
        raise_flag(&nonfinite);
      }
    });
    descend(level, counters, partitions, &threshold);
  }
  run_tasks(executor, partitions, [&](int64_t p) {
    int64_t entry = 0;
    int64_t ties = threshold.ties;
    int64_t above, equal;
    for (int64_t before = 0; before < p; ++before) {
      tally(counters + before * kRadixBins, threshold.key, &above, &equal);
      const int64_t taken = minimum(equal, ties);
      entry += above + taken;
      ties -= taken;
    }
    kernels().emit(t, p * kPartition, end_of(p), threshold.key, ties, entry);
  });
  return nonfinite != 0;
}

}  // namespace

int64_t exact_workspace_bytes(const scalecom_tensor* tensors, int64_t count) {
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t partitions = partition_count(tensors[i]);
    if (partitions > 1) most = maximum(most, partitions);
  }
  return most * kRadixBins * int64_t{sizeof(uint32_t)};
}

int32_t select_exact(const scalecom_tensor* tensors, int64_t count, int32_t gradient_type,
                     uint32_t* nonfinite, void* workspace, int64_t workspace_bytes,
                     const scalecom_executor* executor) {
  if (!exact_selection_valid(tensors, count)) return SCALECOM_INVALID_ARGUMENT;
  const int64_t needed = exact_workspace_bytes(tensors, count);
  if (needed > 0 && !pointer_valid(workspace, 16)) return SCALECOM_INVALID_ARGUMENT;
  if (workspace_bytes < needed) return SCALECOM_WORKSPACE_TOO_SMALL;
  // Small tensors: each is one task, with its counters on the stack.
  run_tasks(executor, count, [&](int64_t i) {
    if (partition_count(tensors[i]) != 1) return;
    uint32_t counters[kRadixBins];
    if (select_tensor(tensors[i], gradient_type, counters, nullptr)) raise_flag(nonfinite);
  });
  for (int64_t i = 0; i < count; ++i) {
    if (partition_count(tensors[i]) < 2) continue;
    if (select_tensor(tensors[i], gradient_type, static_cast<uint32_t*>(workspace), executor)) {
      raise_flag(nonfinite);
    }
  }
  return SCALECOM_OK;
}

}  // namespace scalecom
