// What the entry points refuse, and that they refuse before they write.
#include "tests/sweep.h"

namespace {

using test::Bucket;
using test::require;

Bucket bucket() {
  return Bucket({test::chunked(1000, 100, 3)}, SCALECOM_FLOAT32, SCALECOM_FLOAT32,
                test::Data::kNormal, 0, 1);
}

int32_t select(const Bucket& b, uint32_t* flag) {
  return scalecom_offsets_select_cpu(b.list(), b.count(), b.gradient_type, flag, nullptr);
}

void refuses(const char* what, void (*spoil)(scalecom_tensor*)) {
  Bucket b = bucket();
  const Bucket before(b);
  spoil(&b.tensors[0]);
  uint32_t flag = 7;
  require(select(b, &flag) == SCALECOM_INVALID_ARGUMENT && flag == 7, what);
  b.tensors[0] = before.tensors[0];
  b.tensors[0].offsets = b.arrays[2].get();
  test::require_same(b, before, what);
}

}  // namespace

int main() {
  using T = scalecom_tensor;
  refuses("negative elements", [](T* t) { t->elements = -1; });
  refuses("address overflow", [](T* t) { t->elements = INT64_MAX; });
  refuses("chunk_size 0", [](T* t) { t->chunk_size = 0; });
  refuses("chunk_size above the offset's width", [](T* t) { t->offset_bytes = 1; });
  refuses("offset_bytes 3", [](T* t) { t->offset_bytes = 3; });
  refuses("chunk_keep 0", [](T* t) { t->chunk_keep = 0; });
  refuses("chunk_keep above 16", [](T* t) { t->chunk_keep = 17; });
  refuses("chunk_keep above chunk_size", [](T* t) {
    t->chunk_size = 2;
    t->chunk_keep = 3;
  });
  refuses("tail_keep 0", [](T* t) { t->tail_keep = 0; });
  refuses("tail_keep above the tail", [](T* t) {
    t->elements = 901;
    t->tail_keep = 2;
  });
  refuses("null gradient", [](T* t) { t->gradient = nullptr; });
  refuses("null residual", [](T* t) { t->residual = nullptr; });
  refuses("null offsets", [](T* t) { t->offsets = nullptr; });
  refuses("gradient off its alignment",
          [](T* t) { t->gradient = static_cast<const char*>(t->gradient) + 1; });

  Bucket b = bucket();
  uint32_t flag = 0;
  require(scalecom_offsets_select_cpu(b.list(), -1, 0, &flag, nullptr) != SCALECOM_OK, "count");
  require(scalecom_offsets_select_cpu(nullptr, 1, 0, &flag, nullptr) != SCALECOM_OK, "list");
  require(scalecom_offsets_select_cpu(b.list(), 1, 4, &flag, nullptr) != SCALECOM_OK, "type");
  require(scalecom_offsets_select_cpu(b.list(), 1, 0, nullptr, nullptr) != SCALECOM_OK, "flag");
  require(scalecom_offsets_select_cpu(nullptr, 0, 0, &flag, nullptr) == SCALECOM_OK, "empty list");
  require(scalecom_values_gather_cpu(b.list(), 1, 0, SCALECOM_FLOAT64, INFINITY, nullptr) !=
              SCALECOM_OK,
          "float64 on the wire");
  for (float beta : {0.0f, -1.0f, 1.5f, NAN}) {
    require(
        scalecom_residuals_filter_cpu(b.list(), 1, 0, 0, INFINITY, beta, nullptr) != SCALECOM_OK,
        "beta");
  }
  for (float limit : {0.0f, -1.0f, NAN}) {
    require(
        scalecom_values_gather_cpu(b.list(), 1, 0, 0, limit, nullptr) != SCALECOM_OK &&
            scalecom_residuals_filter_cpu(b.list(), 1, 0, 0, limit, 1.0f, nullptr) != SCALECOM_OK &&
            scalecom_updates_apply_cpu(b.list(), 1, 0, 0, limit, 1.0f, nullptr) != SCALECOM_OK,
        "limit of the wire");
  }
  float value = 5;
  require(scalecom_flag_write_cpu(nullptr, 0, &value) != SCALECOM_OK, "no flag to read");
  require(scalecom_flag_write_cpu(&flag, 0, nullptr) != SCALECOM_OK, "no flag to write");
  require(scalecom_flag_write_cpu(&flag, SCALECOM_FLOAT64, &value) != SCALECOM_OK && value == 5,
          "flag in float64");

  Bucket e({test::exact(2000000, 1000)}, SCALECOM_FLOAT32, SCALECOM_FLOAT32, test::Data::kNormal, 0,
           1);
  const int64_t bytes = scalecom_indices_workspace_cpu(e.list(), 1);
  require(bytes > 0 && bytes <= 2000000 * 4 / 100, "workspace is under 1 % of the gradient");
  std::vector<long double> workspace(static_cast<size_t>(bytes) / sizeof(long double));
  require(scalecom_indices_select_cpu(e.list(), 1, 0, &flag, workspace.data(), bytes - 1,
                                      nullptr) == SCALECOM_WORKSPACE_TOO_SMALL,
          "workspace too small");
  require(scalecom_indices_select_cpu(b.list(), 1, 0, &flag, workspace.data(), bytes, nullptr) ==
              SCALECOM_INVALID_ARGUMENT,
          "exact selection of several chunks");
  printf("arguments are refused as promised\n");
  return 0;
}
