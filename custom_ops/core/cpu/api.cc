// The CPU functions of the C ABI: check, cut into tasks, run.
#include <string.h>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/select_exact.h"
#include "core/validate.h"

namespace scalecom {
namespace {

int64_t chunk_piece(const scalecom_tensor& t) { return t.chunk_size; }

int64_t block_piece(const scalecom_tensor&) { return kBlock; }

// From here on the output is larger than caches keep until its reader comes.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

// Calls function(tensor, begin, end) on blocks of elements, begin a multiple of kBlock.
template <typename Function>
void run_blocks(const scalecom_tensor* tensors, int64_t count, const scalecom_executor* executor,
                const Function& function) {
  run_pieces(tensors, count, executor, block_piece,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               function(t, first * kBlock, minimum(last * kBlock, t.elements));
             });
}

// Elements that entries point at, one after the other: entry_element without a division.
class Entries {
 public:
  Entries(const scalecom_tensor& t, int64_t entry)
      : tensor_(t), entry_(entry), chunk_(entry / t.chunk_keep), rank_(entry % t.chunk_keep) {}

  int64_t next() {
    const int64_t element = entry_element(tensor_, chunk_, entry_++);
    if (++rank_ == tensor_.chunk_keep) {
      rank_ = 0;
      ++chunk_;
    }
    return element;
  }

 private:
  const scalecom_tensor& tensor_;
  int64_t entry_;
  int64_t chunk_;
  int64_t rank_;
};

// Entries between a prefetch and the use of what it fetched. The elements lie so far apart
// that the hardware foresees none of them.
constexpr int64_t kAhead = 128;

void gather(const scalecom_tensor& t, int64_t first, int64_t last, int32_t wire_type,
            float wire_limit) {
  Entries later(t, first);
  const auto fetch = [&] {
    const int64_t element = later.next();
    if (element >= 0) __builtin_prefetch(t.compensated + element, 1, 2);
  };
  for (int64_t entry = first; entry < minimum(first + kAhead, last); ++entry) fetch();
  Entries entries(t, first);
  for (int64_t entry = first; entry < last; ++entry) {
    if (entry + kAhead < last) fetch();
    const int64_t element = entries.next();
    if (element < 0) {
      wire_store(t.values, wire_type, entry, bits_float(0x7fc00000u));
      continue;
    }
    float* p = t.compensated + element;
    const float sent = wire_limited(*p, wire_limit);
    wire_store(t.values, wire_type, entry, sent);
    *p -= wire_round(sent, wire_type);
  }
}

void descend(const scalecom_slices& s, int64_t first, int64_t last, float learning_rate) {
  for (int64_t i = first; i < last; ++i) {
    const int64_t later = s.indices[minimum(i + kAhead, last - 1)];
    if (later >= 0 && later < s.elements) __builtin_prefetch(s.variable + later, 1, 2);
    const int64_t element = s.indices[i];
    if (element < 0 || element >= s.elements) continue;
    s.variable[element] -= s.values[i] * learning_rate;
  }
}

}  // namespace
}  // namespace scalecom

using namespace scalecom;  // NOLINT: this file is the outside of the namespace

extern "C" {

const char* scalecom_status_text(int32_t status) {
  switch (status) {
    case SCALECOM_OK: return "ok";
    case SCALECOM_INVALID_ARGUMENT: return "an argument breaks a rule of scalecom.h";
    case SCALECOM_WORKSPACE_TOO_SMALL: return "the workspace is smaller than asked for";
    default: return status >= SCALECOM_DEVICE_ERROR ? "an error of the device" : "not a status";
  }
}

int64_t scalecom_offset_bytes(int64_t chunk_size) {
  if (chunk_size < 1 || chunk_size > int64_t{1} << 32) return 0;
  return chunk_size <= 256 ? 1 : chunk_size <= 65536 ? 2 : 4;
}

int64_t scalecom_tensor_kept(const scalecom_tensor* tensor) {
  return tensor != nullptr && layout_valid(*tensor) ? kept_count(*tensor) : -1;
}

const char* scalecom_cpu_isa(void) { return kernels().isa; }

int32_t scalecom_gradients_compensate_cpu(const scalecom_tensor* tensors, int64_t count,
                                          int32_t gradient_type, uint32_t* nonfinite,
                                          const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kGradient | kResidual | kCompensated, gradient_type) ||
      !pointer_valid(nonfinite, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const auto compensate = kernels().of[gradient_type].compensate;
  run_blocks(tensors, count, executor, [&](const scalecom_tensor& t, int64_t begin, int64_t end) {
    if (compensate(t, begin, end)) raise_flag(nonfinite);
  });
  return SCALECOM_OK;
}

int64_t scalecom_offsets_workspace_cpu(const scalecom_tensor* tensors, int64_t count,
                                       int32_t selection) {
  if (!layouts_valid(tensors, count)) return -1;
  if (selection == SCALECOM_EXACT) return exact_workspace_bytes(tensors, count);
  return kernels().of[SCALECOM_FLOAT32].select(selection) != nullptr ? 0 : -1;
}

int32_t scalecom_offsets_select_cpu(const scalecom_tensor* tensors, int64_t count,
                                    int32_t selection, int32_t gradient_type, uint32_t* nonfinite,
                                    void* workspace, int64_t workspace_bytes,
                                    const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kGradient | kResidual | kCompensated | kOffsets,
                     gradient_type) ||
      !pointer_valid(nonfinite, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  if (selection == SCALECOM_EXACT) {
    return select_exact(tensors, count, gradient_type, nonfinite, workspace, workspace_bytes,
                        executor);
  }
  const SelectLoop select = kernels().of[gradient_type].select(selection);
  if (select == nullptr || !chunk_selection_valid(tensors, count)) return SCALECOM_INVALID_ARGUMENT;
  run_pieces(tensors, count, executor, chunk_piece,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               if (select(t, first, last)) raise_flag(nonfinite);
             });
  return SCALECOM_OK;
}

int32_t scalecom_values_gather_cpu(const scalecom_tensor* tensors, int64_t count, int32_t wire_type,
                                   float wire_limit, const scalecom_executor* executor) {
  if (!limit_valid(wire_limit) || !tensors_valid(tensors, count, kCompensated | kOffsets | kValues,
                                                 SCALECOM_FLOAT32, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  run_ranges(tensors, count, executor, kTaskEntries, kept_count,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               gather(t, first, last, wire_type, wire_limit);
             });
  return SCALECOM_OK;
}

int32_t scalecom_flag_write_cpu(const uint32_t* nonfinite, int32_t wire_type, void* flag) {
  if (!flag_valid(nonfinite, wire_type, flag)) return SCALECOM_INVALID_ARGUMENT;
  wire_store(flag, wire_type, 0, *nonfinite == 0 ? 0.0f : bits_float(kInfinityKey));
  return SCALECOM_OK;
}

int32_t scalecom_residuals_filter_cpu(const scalecom_tensor* tensors, int64_t count, float beta,
                                      const uint8_t* finite, const scalecom_executor* executor) {
  if (!beta_valid(beta) || !pointer_valid(finite, 1) ||
      !tensors_valid(tensors, count, kResidual | kCompensated)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const bool is_finite = *finite != 0;
  if (is_finite && beta == 1.0f) return SCALECOM_OK;
  run_blocks(tensors, count, executor, [&](const scalecom_tensor& t, int64_t begin, int64_t end) {
    if (is_finite) {
      kernels().filter(t, begin, end, beta);
    } else {
      memcpy(t.compensated + begin, t.residual + begin,
             static_cast<size_t>(end - begin) * sizeof(float));
    }
  });
  return SCALECOM_OK;
}

int32_t scalecom_outputs_scatter_cpu(const scalecom_tensor* tensors, int64_t count,
                                     int32_t gradient_type, int32_t wire_type,
                                     const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kOffsets | kReduced | kOutput, gradient_type, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const int64_t bytes = total(tensors, count, element_count) * type_bytes(gradient_type);
  const auto scatter = kernels().of[gradient_type].scatter;
  run_blocks(tensors, count, executor, [&](const scalecom_tensor& t, int64_t begin, int64_t end) {
    scatter(t, begin, end, wire_type, bytes >= kStreamBytes);
  });
  return SCALECOM_OK;
}

int32_t scalecom_variables_descend_cpu(const scalecom_slices* slices, int64_t count,
                                       const float* learning_rate,
                                       const scalecom_executor* executor) {
  if (!slices_valid(slices, count) || !pointer_valid(learning_rate, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  run_ranges(
      slices, count, executor, kTaskEntries, [](const scalecom_slices& s) { return s.size; },
      [&](const scalecom_slices& s, int64_t first, int64_t last) {
        descend(s, first, last, *learning_rate);
      });
  return SCALECOM_OK;
}

}  // extern "C"
