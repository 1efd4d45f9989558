// The CPU functions of the C ABI, except exact selection: check, cut into tasks, run.
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/validate.h"

namespace scalecom {
namespace {

int64_t chunk_piece(const scalecom_tensor& t) { return t.chunk_size; }

int64_t block_piece(const scalecom_tensor&) { return kBlock; }

// From here on the output is larger than caches keep until its reader comes.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

int32_t finish_all(const scalecom_tensor* tensors, int64_t count, int32_t gradient_type,
                   const scalecom_executor* executor, FinishOptions options) {
  options.stream =
      total_elements(tensors, count) * type_bytes(gradient_type) >= kStreamBytes;
  const auto finish = kernels().finish[gradient_type];
  run_pieces(tensors, count, executor, block_piece,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               finish(t, first * kBlock, minimum(last * kBlock, t.elements), options);
             });
  return SCALECOM_OK;
}

template <typename T>
void gather(const scalecom_tensor& t, int64_t first, int64_t last, int32_t wire_type) {
  const T* gradient = static_cast<const T*>(t.gradient);
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const int64_t entry = chunk * t.chunk_keep;
    const int64_t end = entry + chunk_kept(t, chunk);
    for (int64_t i = entry; i < end; ++i) {
      const int64_t element = entry_element(t, chunk, i);
      const float p = element < 0 ? bits_float(0x7fc00000u)
                                  : t.residual[element] + to_float(gradient[element]);
      wire_store(t.values, wire_type, i, p);
    }
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
    case SCALECOM_DEVICE_ERROR: return "the device refused a launch; its last error says why";
    default: return "not a status";
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

int32_t scalecom_offsets_select_cpu(const scalecom_tensor* tensors, int64_t count,
                                    int32_t gradient_type, uint32_t* nonfinite,
                                    const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kGradient | kResidual | kOffsets, gradient_type) ||
      !chunk_selection_valid(tensors, count) || !pointer_valid(nonfinite, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const auto select = kernels().select[gradient_type];
  run_pieces(tensors, count, executor, chunk_piece,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               if (select(t, first, last)) raise_flag(nonfinite);
             });
  return SCALECOM_OK;
}

int32_t scalecom_gradients_check_cpu(const scalecom_tensor* tensors, int64_t count,
                                     int32_t gradient_type, uint32_t* nonfinite,
                                     const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kGradient, gradient_type) || !pointer_valid(nonfinite, 4)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  const auto check = kernels().check[gradient_type];
  run_pieces(tensors, count, executor, block_piece,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               if (check(t, first * kBlock, minimum(last * kBlock, t.elements))) {
                 raise_flag(nonfinite);
               }
             });
  return SCALECOM_OK;
}

int32_t scalecom_values_gather_cpu(const scalecom_tensor* tensors, int64_t count,
                                   int32_t gradient_type, int32_t wire_type,
                                   const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kGradient | kResidual | kOffsets | kValues, gradient_type,
                     wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  constexpr void (*kGather[])(const scalecom_tensor&, int64_t, int64_t, int32_t) = {
      gather<float>, gather<float16>, gather<bfloat16>, gather<double>};
  run_pieces(tensors, count, executor, chunk_piece,
             [&](const scalecom_tensor& t, int64_t first, int64_t last) {
               kGather[gradient_type](t, first, last, wire_type);
             });
  return SCALECOM_OK;
}

int32_t scalecom_residuals_filter_cpu(const scalecom_tensor* tensors, int64_t count,
                                      int32_t gradient_type, int32_t wire_type, float beta,
                                      const scalecom_executor* executor) {
  if (!beta_valid(beta) || !tensors_valid(tensors, count,
                                          kGradient | kResidual | kOffsets | kValues,
                                          gradient_type, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  return finish_all(tensors, count, gradient_type, executor,
                    {wire_type, beta, /*filter=*/true, /*scatter=*/false, false});
}

int32_t scalecom_outputs_scatter_cpu(const scalecom_tensor* tensors, int64_t count,
                                     int32_t gradient_type, int32_t wire_type,
                                     const scalecom_executor* executor) {
  if (!tensors_valid(tensors, count, kOffsets | kReduced | kOutput, gradient_type, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  return finish_all(tensors, count, gradient_type, executor,
                    {wire_type, 1.0f, /*filter=*/false, /*scatter=*/true, false});
}

int32_t scalecom_updates_apply_cpu(const scalecom_tensor* tensors, int64_t count,
                                   int32_t gradient_type, int32_t wire_type, float beta,
                                   const scalecom_executor* executor) {
  if (!beta_valid(beta) ||
      !tensors_valid(tensors, count,
                     kGradient | kResidual | kOffsets | kValues | kReduced | kOutput,
                     gradient_type, wire_type)) {
    return SCALECOM_INVALID_ARGUMENT;
  }
  return finish_all(tensors, count, gradient_type, executor,
                    {wire_type, beta, /*filter=*/true, /*scatter=*/true, false});
}

}  // extern "C"
