// The correctness sweep, the same for every backend: each function against the reference,
// over types, layouts, data, alignments and seeds. Equal means equal to the bit (any NaN
// equals any NaN).
#ifndef SCALECOM_TESTS_SWEEP_H_
#define SCALECOM_TESTS_SWEEP_H_

#include <stdio.h>
#include <stdlib.h>

#include <functional>
#include <string>

#include "tests/reference.h"

namespace test {

// A backend runs one function of the ABI on a list of tensors in host memory.
struct Backend {
  std::function<int32_t(TensorList&, uint32_t*)> compensate;
  std::function<int32_t(TensorList&, int32_t selection, uint32_t*)> select;
  std::function<int32_t(TensorList&, float limit)> gather;
  std::function<int32_t(uint32_t nonfinite, int32_t wire_type, void* value)> flag;
  std::function<int32_t(TensorList&, float beta, bool finite)> filter;
  std::function<int32_t(TensorList&)> scatter;
  std::function<int32_t(SlicesList&, float learning_rate)> descend;
};

inline void require(bool condition, const std::string& what) {
  if (condition) return;
  fprintf(stderr, "FAILED: %s\n", what.c_str());
  exit(1);
}

inline bool same_number(const void* a, const void* b, int32_t type, int64_t index) {
  const int64_t bytes = type_bytes(type);
  const char* x = static_cast<const char*>(a) + index * bytes;
  const char* y = static_cast<const char*>(b) + index * bytes;
  if (memcmp(x, y, static_cast<size_t>(bytes)) == 0) return true;
  return isnan(load(a, type, index)) && isnan(load(b, type, index));
}

inline void require_same(const TensorList& got, const TensorList& want, const std::string& what) {
  for (size_t i = 0; i < got.tensors.size(); ++i) {
    const scalecom_tensor& g = got.tensors[i];
    const scalecom_tensor& w = want.tensors[i];
    const int64_t kept = scalecom_tensor_kept(&g);
    const auto compare = [&](const void* a, const void* b, int32_t type, int64_t n,
                             const char* name) {
      for (int64_t j = 0; j < n; ++j) {
        if (same_number(a, b, type, j)) continue;
        require(false, what + ": tensor " + std::to_string(i) + " " + name + "[" +
                           std::to_string(j) + "] is " + std::to_string(load(a, type, j)) +
                           ", expected " + std::to_string(load(b, type, j)));
      }
    };
    for (int64_t j = 0; j < kept; ++j) {
      require(offset_at(g, j) == offset_at(w, j),
              what + ": tensor " + std::to_string(i) + " offset " + std::to_string(j) + " is " +
                  std::to_string(offset_at(g, j)) + ", expected " +
                  std::to_string(offset_at(w, j)));
    }
    compare(g.residual, w.residual, SCALECOM_FLOAT32, g.elements, "residual");
    compare(g.compensated, w.compensated, SCALECOM_FLOAT32, g.elements, "compensated");
    compare(g.values, w.values, got.wire_type, kept, "values");
    compare(g.output, w.output, got.gradient_type, g.elements, "output");
  }
}

struct Case {
  std::vector<Shape> shapes;
  bool exact_selection = false;
  std::string name;
};

// One step on one list. `corrupt` breaks offsets before they are used.
inline void check_step(const Backend& backend, const Case& c, int32_t gradient_type,
                       int32_t wire_type, Data data, float limit, float beta, int shift,
                       bool corrupt, uint64_t seed) {
  const std::string name =
      c.name + " " + type_name(gradient_type) + " wire " + type_name(wire_type) + " data " +
      std::to_string(static_cast<int>(data)) + " seed " + std::to_string(seed) + ": ";
  TensorList got(c.shapes, gradient_type, wire_type, data, shift, seed);
  TensorList want(got);
  TensorList unselected(got);
  uint32_t flag = 0;
  const int32_t selection = c.exact_selection ? SCALECOM_EXACT : SCALECOM_CHUNK;
  require(backend.select(got, selection, &flag) == SCALECOM_OK, name + "select refused");
  require(flag == reference_select(want, c.exact_selection), name + "select's finite flag");
  require_same(got, want, name + "select");

  TensorList unselected_want(unselected);
  flag = 0;
  require(backend.compensate(unselected, &flag) == SCALECOM_OK, name + "compensate refused");
  require(flag == reference_compensate(unselected_want), name + "compensate's finite flag");
  require_same(unselected, unselected_want, name + "compensate");

  if (corrupt) {
    // Out of range where the width allows it: else it might be there twice. Where offsets must
    // increase, only the last can be out of range.
    for (size_t i = 0; i < got.tensors.size(); ++i) {
      const scalecom_tensor& t = got.tensors[i];
      if (t.chunk_size == int64_t{1} << (8 * t.offset_bytes)) continue;
      const int64_t kept = scalecom_tensor_kept(&t);
      const bool rising = t.chunk_keep > SCALECOM_MAX_CHUNK_KEEP;
      for (int64_t j = rising ? std::max<int64_t>(0, kept - 1) : 0; j < kept; j += 3) {
        for (const TensorList* b : {&got, &want}) offset_put(b->tensors[i], j, 0xffffffff);
      }
    }
  }
  require(backend.gather(got, limit) == SCALECOM_OK, name + "gather refused");
  reference_gather(want, limit);
  require_same(got, want, name + "gather");

  got.fill_reduced(seed + 1);
  want.fill_reduced(seed + 1);
  const bool finite = seed % 8 != 3;
  require(backend.filter(got, beta, finite) == SCALECOM_OK, name + "filter refused");
  reference_filter(want, beta, finite);
  require_same(got, want, name + "filter");
  require(backend.scatter(got) == SCALECOM_OK, name + "scatter refused");
  reference_scatter(want);
  require_same(got, want, name + "scatter");
}

// Slices of several variables, some indices of which are none of theirs.
inline void check_descend(const Backend& backend, uint64_t seed) {
  SlicesList got(seed);
  const SlicesList before(got);
  const float learning_rate = seed % 3 == 0 ? 1e-38f : 0.3f;
  require(backend.descend(got, learning_rate) == SCALECOM_OK, "descend refused");
  for (size_t i = 0; i < got.variables.size(); ++i) {
    std::vector<float> want = before.variables[i];
    for (size_t j = 0; j < got.indices[i].size(); ++j) {
      const int64_t at = got.indices[i][j];
      if (at < 0 || at >= static_cast<int64_t>(want.size())) continue;
      float& w = want[static_cast<size_t>(at)];
      w = subtract(w, multiply(got.values[i][j], learning_rate));
    }
    require(want == got.variables[i], "descend, seed " + std::to_string(seed));
  }
}

inline void check_flags(const Backend& backend) {
  for (int32_t wire : wire_types()) {
    for (uint32_t nonfinite : {0u, 1u}) {
      double value = 5;  // room for one of any type
      require(backend.flag(nonfinite, wire, &value) == SCALECOM_OK, "flag refused");
      require(load(&value, wire, 0) == (nonfinite != 0 ? INFINITY : 0.0f), "flag");
    }
  }
}

inline std::vector<Case> cases() {
  std::vector<Case> list;
  const int64_t sizes[] = {0,   1,   2,   15,  16,   17,   63,   100,
                           255, 256, 257, 999, 1000, 1023, 4097, 20011};
  for (double ratio : {2.0, 3.5, 10.0, 100.0, 256.0, 1000.0, 10000.0}) {
    for (int64_t keep : {1, 2, 7, 10, 16}) {
      Case c;
      for (int64_t n : sizes) c.shapes.push_back(chunked(n, ratio, keep));
      c.name = "ratio " + std::to_string(ratio) + " keep " + std::to_string(keep);
      list.push_back(c);
    }
  }
  Case whole;
  for (int64_t n : sizes) whole.shapes.push_back({n, 7, 7, n % 7});  // everything is kept
  whole.name = "kept whole";
  list.push_back(whole);
  Case turns;  // about the sizes of chunk where CUDA turns to another kernel
  for (int64_t size : {64, 65, 128, 129, 256, 257}) {
    for (int64_t keep : {1, 3, 16}) {
      turns.shapes.push_back({4097, size, keep, std::min(keep, 4097 % size)});
    }
  }
  turns.name = "turns";
  list.push_back(turns);
  for (double ratio : {1.0, 2.0, 100.0, 10000.0}) {
    Case c;
    for (int64_t n : sizes) {
      const int64_t keep = round_even(static_cast<double>(n) / ratio);
      c.shapes.push_back(exact(n, std::max<int64_t>(1, keep)));
    }
    c.exact_selection = true;
    c.name = "exact ratio " + std::to_string(ratio);
    list.push_back(c);
  }
  return list;
}

// From this stride on large lists are taken once.
constexpr uint64_t kSlowStride = 100;

// The backends take turns. `stride` runs every so many cases: slow builds take fewer.
inline void sweep(const std::vector<Backend>& backends, uint64_t stride) {
  for (const Backend& backend : backends) {
    check_flags(backend);
    for (uint64_t seed = 0; seed < 6; ++seed) check_descend(backend, seed);
  }
  uint64_t seed = 1;
  int64_t steps = 0;
  const std::vector<int32_t> wires = wire_types();
  for (const Case& c : cases()) {
    for (int32_t type : gradient_types()) {
      for (Data data : kAllData) {
        if (++seed % stride != 0) continue;
        const int32_t wire = wires[seed % wires.size()];
        const float limit = seed % 7 == 0 ? 0.0078125f : seed % 7 == 1 ? 65504.0f / 4 : INFINITY;
        const float beta = seed % 4 == 0 ? 0.1f : seed % 4 == 1 ? 0.7f : 1.0f;
        check_step(backends[seed % backends.size()], c, type, wire, data, limit, beta,
                   /*shift=*/static_cast<int>(seed % 5 % 4), /*corrupt=*/seed % 6 == 0, seed);
        ++steps;
      }
    }
  }
  // Many tensors in one call, one of them large enough to be cut.
  Case many;
  for (int64_t i = 0; i < 700; ++i) many.shapes.push_back(chunked(i * 37 % 1500, 100, 1 + i % 16));
  many.shapes.push_back(chunked(1300000, 100, 10));
  many.shapes.push_back(chunked(600001, 10000, 16));
  many.name = "many";
  Case many_exact;
  many_exact.shapes = {exact(1300000, 13000), exact(5, 2), exact(1048577, 1), exact(70000, 70000)};
  many_exact.exact_selection = true;
  many_exact.name = "many exact";
  for (Data data : {Data::kTies, Data::kNormal, Data::kZero, Data::kRising}) {
    for (const Case& c : {many, many_exact}) {
      check_step(backends.back(), c, SCALECOM_FLOAT32, SCALECOM_FLOAT32, data, INFINITY, 1.0f, 0,
                 false, ++seed);
      check_step(backends.back(), c, SCALECOM_BFLOAT16, SCALECOM_FLOAT16, data, 0.015625f, 0.3f, 1,
                 false, ++seed);
      steps += 2;
    }
    if (stride >= kSlowStride) break;
  }
  printf("%lld steps equal to the reference\n", static_cast<long long>(steps));
}

}  // namespace test

#endif  // SCALECOM_TESTS_SWEEP_H_
