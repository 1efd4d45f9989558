// The correctness sweep on the CPU, on 1 and on 3 threads in turn. SCALECOM_ISA picks the
// instruction set; the argument is the stride (see sweep).
#include "tests/sweep.h"

namespace {

test::Backend backend(const scalecom_executor* executor) {
  using test::TensorList;
  test::Backend b;
  b.select = [=](TensorList& k, int32_t selection, uint32_t* flag) {
    const int64_t bytes = scalecom_offsets_workspace_cpu(k.list(), k.count(), selection);
    const std::unique_ptr<long double[]> workspace(
        new long double[static_cast<size_t>(bytes) / sizeof(long double) + 1]);
    return scalecom_offsets_select_cpu(k.list(), k.count(), selection, k.gradient_type, flag,
                                       workspace.get(), bytes, executor);
  };
  b.compensate = [=](TensorList& k, uint32_t* flag) {
    return scalecom_gradients_compensate_cpu(k.list(), k.count(), k.gradient_type, flag, executor);
  };
  b.gather = [=](TensorList& k, float limit) {
    return scalecom_values_gather_cpu(k.list(), k.count(), k.wire_type, limit, executor);
  };
  b.flag = [](uint32_t nonfinite, int32_t wire_type, void* value) {
    return scalecom_flag_write_cpu(&nonfinite, wire_type, value);
  };
  b.filter = [=](TensorList& k, float beta, bool finite) {
    const uint8_t flag = finite;
    return scalecom_residuals_filter_cpu(k.list(), k.count(), beta, &flag, executor);
  };
  b.scatter = [=](TensorList& k) {
    return scalecom_outputs_scatter_cpu(k.list(), k.count(), k.gradient_type, k.wire_type,
                                        executor);
  };
  b.descend = [=](test::SlicesList& k, float learning_rate) {
    const std::vector<scalecom_slices> slices = k.list();
    return scalecom_variables_descend_cpu(slices.data(), static_cast<int64_t>(slices.size()),
                                          &learning_rate, executor);
  };
  return b;
}

}  // namespace

int main(int argc, char** argv) {
  printf("instruction set: %s\n", scalecom_cpu_isa());
  int32_t threads = 3;
  const scalecom_executor executor = {scalecom_threads_run, &threads};
  test::sweep({backend(nullptr), backend(&executor)},
              argc > 1 ? strtoull(argv[1], nullptr, 10) : 1);
  return 0;
}
