// Fuzz target over the C ABI: bytes become layouts, data and offsets, valid or not. Valid
// ones must agree with the reference; the others must be refused or pass over corrupt
// offsets without touching memory that is not theirs (run it under a sanitizer).
//
// With libFuzzer: clang++ -fsanitize=fuzzer. Elsewhere -DSCALECOM_FUZZ_SECONDS=10 makes it a
// program that feeds itself random bytes.
#include "tests/sweep.h"

namespace {

struct Bytes {
  const uint8_t* data;
  size_t size;
  uint64_t next(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes && size > 0; ++i, ++data, --size) value = value << 8 | *data;
    return value;
  }
};

int32_t pick(const std::vector<int32_t>& types, Bytes& in) {
  return types[in.next(1) % types.size()];
}

// An invalid layout over real memory: refused, or harmless.
void hostile(Bytes in) {
  alignas(64) unsigned char memory[7][256] = {};
  scalecom_tensor t = {};
  t.elements = static_cast<int64_t>(in.next(8));
  t.chunk_size = static_cast<int64_t>(in.next(8));
  t.chunk_keep = static_cast<int64_t>(in.next(8));
  t.tail_keep = static_cast<int64_t>(in.next(8));
  t.offset_bytes = static_cast<int64_t>(in.next(1));
  const int32_t type = static_cast<int32_t>(in.next(1));
  // A layout that passes the checks must fit the memory before it may run.
  if (scalecom_tensor_kept(&t) >= 0 && t.elements > 32) t.elements = 32;
  t.gradient = memory[0];
  t.residual = reinterpret_cast<float*>(memory[1]);
  t.offsets = memory[2];
  t.values = memory[3];
  t.reduced = memory[4];
  t.output = in.next(1) % 8 == 0 ? nullptr : memory[5];
  t.compensated = reinterpret_cast<float*>(memory[in.next(1) % 2 == 0 ? 0 : 6]);
  uint32_t flag = 0;
  for (int32_t selection = -1; selection < 3; ++selection) {
    scalecom_offsets_select_cpu(&t, 1, selection, type, &flag, memory, 0, nullptr);
  }
  scalecom_gradients_compensate_cpu(&t, 1, type, &flag, nullptr);
  scalecom_values_gather_cpu(&t, 1, 0, INFINITY, nullptr);
  const uint8_t finite = in.next(1) % 2;
  scalecom_residuals_filter_cpu(&t, 1, 0.5f, &finite, nullptr);
  scalecom_outputs_scatter_cpu(&t, 1, type, 0, nullptr);
}

void valid(Bytes in) {
  const bool exact = in.next(1) % 4 == 0;
  std::vector<test::Shape> shapes;
  for (uint64_t i = in.next(1) % 4 + 1; i > 0; --i) {
    const int64_t n = static_cast<int64_t>(in.next(2) % 3000);
    if (exact) {
      shapes.push_back(test::exact(n, 1 + static_cast<int64_t>(in.next(2) % 300)));
    } else {
      const double ratio = 1.0 + static_cast<double>(in.next(2) % 4000) / 8;
      shapes.push_back(test::chunked(n, ratio, 1 + static_cast<int64_t>(in.next(1) % 16)));
    }
  }
  const int32_t type = pick(test::gradient_types(), in);
  const int32_t wire = pick(test::wire_types(), in);
  const test::Data data = test::kAllData[in.next(1) % 7];
  test::TensorList got(shapes, type, wire, data, static_cast<int>(in.next(1) % 4), in.next(4));
  test::TensorList want(got);
  std::vector<long double> workspace(4096);
  uint32_t flag = 0;
  const int32_t status =
      scalecom_offsets_select_cpu(got.list(), got.count(), exact ? SCALECOM_EXACT : SCALECOM_CHUNK,
                                  type, &flag, workspace.data(), 0, nullptr);
  test::require(status == SCALECOM_OK, "select refused");
  test::require(flag == test::reference_select(want, exact), "finite flag");
  test::require_same(got, want, "select");

  // Offsets as a broken peer may send them: any bytes at all.
  got.fill_reduced(1);
  for (const scalecom_tensor& t : got.tensors) {
    const int64_t bytes = scalecom_tensor_kept(&t) * t.offset_bytes;
    for (int64_t i = 0; i < bytes && in.size > 0; ++i) {
      static_cast<unsigned char*>(t.offsets)[i] = static_cast<unsigned char>(in.next(1));
    }
  }
  scalecom_values_gather_cpu(got.list(), got.count(), wire, 1.0f, nullptr);
  const uint8_t finite = in.next(1) % 2;
  scalecom_residuals_filter_cpu(got.list(), got.count(), 0.5f, &finite, nullptr);
  scalecom_outputs_scatter_cpu(got.list(), got.count(), type, wire, nullptr);
}

// Slices whose indices are any numbers at all: those of no element are passed over.
void slices(Bytes in) {
  const int64_t elements = static_cast<int64_t>(in.next(1) % 40);
  const size_t size = in.next(1) % 20;
  std::vector<float> variable(static_cast<size_t>(elements), 1.0f);
  std::vector<int64_t> indices(size);
  for (int64_t& index : indices) {
    const bool near = in.next(1) % 2 != 0;
    index = near ? static_cast<int64_t>(in.next(1) % 64) - 8 : static_cast<int64_t>(in.next(8));
  }
  const std::vector<float> values(size, 0.5f);
  std::vector<float> want = variable;
  for (int64_t index : indices) {
    if (index >= 0 && index < elements) want[static_cast<size_t>(index)] -= 0.5f;
  }
  const scalecom_slices s = {elements, static_cast<int64_t>(size), variable.data(), indices.data(),
                             values.data()};
  const float rate = 1.0f;
  // Empty vectors may have no memory, which is refused only where it is needed.
  const int32_t status = scalecom_variables_descend_cpu(&s, 1, &rate, nullptr);
  test::require(status == SCALECOM_OK && variable == want, "descend");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in = {data, size};
  const uint64_t kind = in.next(1) % 8;
  if (kind < 2) {
    hostile(in);
  } else if (kind == 2) {
    slices(in);
  } else {
    valid(in);
  }
  return 0;
}

#if defined(SCALECOM_FUZZ_SECONDS)
#include <chrono>

int main() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(SCALECOM_FUZZ_SECONDS);
  std::mt19937_64 rng(std::random_device{}());
  int64_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    uint8_t bytes[200];
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng());
    // Small layouts pass the checks more often.
    if (rng() % 2) {
      for (int i = 1; i < 33; ++i) bytes[i] = i % 8 == 0 ? bytes[i] & 31 : 0;
    }
    LLVMFuzzerTestOneInput(bytes, rng() % sizeof bytes);
  }
  printf("%lld inputs in %d s\n", static_cast<long long>(runs), SCALECOM_FUZZ_SECONDS);
  return 0;
}
#endif
