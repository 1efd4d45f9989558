// What the entry points refuse, and that they refuse before they write.
#include "tests/sweep.h"

namespace {

using test::require;
using test::TensorList;

TensorList small_list() {
  return TensorList({test::chunked(1000, 100, 3)}, SCALECOM_FLOAT32, SCALECOM_FLOAT32,
                    test::Data::kNormal, 0, 1);
}

int32_t select(const TensorList& b, uint32_t* flag) {
  return scalecom_offsets_select_cpu(b.list(), b.count(), SCALECOM_CHUNK, b.gradient_type, flag,
                                     nullptr, 0, nullptr);
}

void refuses(const char* what, void (*spoil)(scalecom_tensor*)) {
  TensorList b = small_list();
  const TensorList before(b);
  spoil(&b.tensors[0]);
  uint32_t flag = 7;
  require(select(b, &flag) == SCALECOM_INVALID_ARGUMENT && flag == 7, what);
  b.tensors[0] = before.tensors[0];
  b.tensors[0].offsets = b.arrays[3].get();
  test::require_same(b, before, what);
}

// Every function, with a type that it has no case for: a number that no type has, or a type in a
// place that is not its own.
void unknown_types() {
  const auto unknown = [](bool scalecom::ElementType::* role) {
    std::vector<int32_t> types = {INT32_MIN, -1, scalecom::kElementTypeCount, 255, INT32_MAX};
    for (const scalecom::ElementType& type : scalecom::kElementTypes) {
      if (!(type.*role)) types.push_back(type.number);
    }
    return types;
  };
  TensorList got = small_list();
  const TensorList before(got);
  const scalecom_tensor* list = got.list();
  uint32_t flag = 7;
  for (int32_t type : unknown(&scalecom::ElementType::gradient)) {
    const std::string what = "gradient type " + std::to_string(type);
    for (int32_t status : {
             scalecom_offsets_select_cpu(list, 1, SCALECOM_CHUNK, type, &flag, nullptr, 0, nullptr),
             scalecom_offsets_select_cpu(list, 1, SCALECOM_EXACT, type, &flag, nullptr, 0, nullptr),
             scalecom_gradients_compensate_cpu(list, 1, type, &flag, nullptr),
             scalecom_outputs_scatter_cpu(list, 1, type, 0, nullptr),
         }) {
      require(status == SCALECOM_INVALID_ARGUMENT && flag == 7, what);
    }
  }
  double value = 5;
  for (int32_t type : unknown(&scalecom::ElementType::wire)) {
    const std::string what = "wire type " + std::to_string(type);
    for (int32_t status : {
             scalecom_values_gather_cpu(list, 1, type, INFINITY, nullptr),
             scalecom_flag_write_cpu(&flag, type, &value),
             scalecom_outputs_scatter_cpu(list, 1, 0, type, nullptr),
         }) {
      require(status == SCALECOM_INVALID_ARGUMENT && value == 5, what);
    }
  }
  test::require_same(got, before, "unknown types");
}

void unknown_selections() {
  TensorList got = small_list();
  const TensorList before(got);
  uint32_t flag = 7;
  const int32_t count = sizeof scalecom::kSelections / sizeof scalecom::kSelections[0];
  for (int32_t selection : {-1, count, 255}) {
    const std::string what = "selection " + std::to_string(selection);
    require(scalecom_offsets_workspace_cpu(got.list(), 1, selection) == -1, what + ": workspace");
    require(scalecom_offsets_select_cpu(got.list(), 1, selection, 0, &flag, nullptr, 0, nullptr) ==
                    SCALECOM_INVALID_ARGUMENT &&
                flag == 7,
            what);
  }
  test::require_same(got, before, "unknown selections");
}

}  // namespace

int main() {
  using T = scalecom_tensor;
  refuses("negative elements", [](T* t) { t->elements = -1; });
  refuses("address overflow", [](T* t) { t->elements = INT64_MAX; });
  refuses("chunk_size 0", [](T* t) { t->chunk_size = 0; });
  refuses("chunk_size above the offset's width", [](T* t) { t->offset_bytes = 1; });
  refuses("offset_bytes 0", [](T* t) { t->offset_bytes = 0; });
  refuses("offset_bytes 3", [](T* t) { t->offset_bytes = 3; });
  refuses("offset_bytes 8", [](T* t) { t->offset_bytes = 8; });
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
  refuses("null compensated", [](T* t) { t->compensated = nullptr; });
  refuses("null offsets", [](T* t) { t->offsets = nullptr; });
  refuses("gradient off its alignment",
          [](T* t) { t->gradient = static_cast<const char*>(t->gradient) + 1; });

  TensorList b = small_list();
  uint32_t flag = 0;
  const auto select_of = [&](const scalecom_tensor* list, int64_t count, uint32_t* to) {
    return scalecom_offsets_select_cpu(list, count, SCALECOM_CHUNK, SCALECOM_FLOAT32, to, nullptr,
                                       0, nullptr);
  };
  require(select_of(b.list(), -1, &flag) != SCALECOM_OK, "count");
  require(select_of(nullptr, 1, &flag) != SCALECOM_OK, "list");
  require(select_of(b.list(), 1, nullptr) != SCALECOM_OK, "flag");
  require(select_of(nullptr, 0, &flag) == SCALECOM_OK, "empty list");
  for (float beta : {0.0f, -1.0f, 1.5f, NAN}) {
    const uint8_t finite = 1;
    require(scalecom_residuals_filter_cpu(b.list(), 1, beta, &finite, nullptr) != SCALECOM_OK,
            "beta");
  }
  require(scalecom_residuals_filter_cpu(b.list(), 1, 0.5f, nullptr, nullptr) != SCALECOM_OK,
          "no finite flag");
  for (float limit : {0.0f, -1.0f, NAN}) {
    require(scalecom_values_gather_cpu(b.list(), 1, 0, limit, nullptr) != SCALECOM_OK,
            "limit of the wire");
  }
  float value = 5;
  require(scalecom_flag_write_cpu(nullptr, 0, &value) != SCALECOM_OK, "no flag to read");
  require(scalecom_flag_write_cpu(&flag, 0, nullptr) != SCALECOM_OK, "no flag to write");
  require(scalecom_flag_write_cpu(&flag, SCALECOM_FLOAT64, &value) != SCALECOM_OK && value == 5,
          "flag in float64");

  TensorList e({test::exact(2000000, 1000)}, SCALECOM_FLOAT32, SCALECOM_FLOAT32,
               test::Data::kNormal, 0, 1);
  const int64_t bytes = scalecom_offsets_workspace_cpu(e.list(), 1, SCALECOM_EXACT);
  require(bytes > 0 && bytes <= 2000000 * 4 / 100, "workspace is under 1 % of the gradient");
  std::vector<long double> workspace(static_cast<size_t>(bytes) / sizeof(long double));
  const auto select_exact = [&](const TensorList& list, int64_t size) {
    return scalecom_offsets_select_cpu(list.list(), 1, SCALECOM_EXACT, 0, &flag, workspace.data(),
                                       size, nullptr);
  };
  require(select_exact(e, bytes - 1) == SCALECOM_WORKSPACE_TOO_SMALL, "workspace too small");
  require(select_exact(b, bytes) == SCALECOM_INVALID_ARGUMENT, "exact selection of several chunks");
  TensorList narrow({test::chunked(1000, 100, 3)}, SCALECOM_BFLOAT16, SCALECOM_FLOAT32,
                    test::Data::kNormal, 0, 2);
  narrow.tensors[0].compensated =
      static_cast<float*>(const_cast<void*>(narrow.tensors[0].gradient));
  require(select(narrow, &flag) == SCALECOM_INVALID_ARGUMENT,
          "p in the place of a narrow gradient");

  test::SlicesList slices(1);
  const float learning_rate = 0.1f;
  const auto descend = [&](void (*spoil)(scalecom_slices*)) {
    std::vector<scalecom_slices> list = slices.list();
    spoil(&list[2]);
    return scalecom_variables_descend_cpu(list.data(), 4, &learning_rate, nullptr);
  };
  using S = scalecom_slices;
  const std::vector<std::vector<float>> variables = slices.variables;
  for (void (*spoil)(S*) :
       {+[](S* t) { t->elements = -1; }, +[](S* t) { t->size = -1; },
        +[](S* t) { t->variable = nullptr; }, +[](S* t) { t->indices = nullptr; },
        +[](S* t) { t->values = nullptr; }}) {
    require(descend(spoil) == SCALECOM_INVALID_ARGUMENT && slices.variables == variables, "slices");
  }
  require(scalecom_variables_descend_cpu(nullptr, 1, &learning_rate, nullptr) != SCALECOM_OK &&
              scalecom_variables_descend_cpu(nullptr, 0, nullptr, nullptr) != SCALECOM_OK &&
              scalecom_variables_descend_cpu(nullptr, 0, &learning_rate, nullptr) == SCALECOM_OK,
          "no slices, no rate");
  unknown_types();
  unknown_selections();
  printf("arguments are refused as promised\n");
  return 0;
}
