// Test data: a list of tensors with their arrays, made from a seed.
#ifndef SCALECOM_TESTS_TENSOR_LIST_H_
#define SCALECOM_TESTS_TENSOR_LIST_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <memory>
#include <random>
#include <vector>

#include "core/types.h"
#include "scalecom/scalecom.h"
#include "tests/small_float.h"

namespace test {

using scalecom::type_bytes;

inline const char* type_name(int32_t type) { return scalecom::kElementTypes[type].name; }

// The numbers of the types that gradients may have; that values may travel in.
inline std::vector<int32_t> types_where(bool scalecom::ElementType::* role) {
  std::vector<int32_t> types;
  for (const scalecom::ElementType& type : scalecom::kElementTypes) {
    if (type.*role) types.push_back(type.number);
  }
  return types;
}
inline std::vector<int32_t> gradient_types() {
  return types_where(&scalecom::ElementType::gradient);
}
inline std::vector<int32_t> wire_types() { return types_where(&scalecom::ElementType::wire); }

// Stores a double into element `index` of an array of `type`; loads it back as float32 sees it.
inline void store(void* array, int32_t type, int64_t index, double value) {
  switch (type) {
    case SCALECOM_FLOAT32: static_cast<float*>(array)[index] = static_cast<float>(value); break;
    case SCALECOM_FLOAT64: static_cast<double*>(array)[index] = value; break;
    case SCALECOM_FLOAT16:
      static_cast<uint16_t*>(array)[index] = small_float_encode(kFloat16, value);
      break;
    case SCALECOM_BFLOAT16:
      static_cast<uint16_t*>(array)[index] = small_float_encode(kBfloat16, value);
      break;
    default: scalecom::stop();
  }
}

inline float load(const void* array, int32_t type, int64_t index) {
  switch (type) {
    case SCALECOM_FLOAT32: return static_cast<const float*>(array)[index];
    case SCALECOM_FLOAT64: return static_cast<float>(static_cast<const double*>(array)[index]);
    case SCALECOM_FLOAT16:
      return static_cast<float>(
          small_float_decode(kFloat16, static_cast<const uint16_t*>(array)[index]));
    case SCALECOM_BFLOAT16:
      return static_cast<float>(
          small_float_decode(kBfloat16, static_cast<const uint16_t*>(array)[index]));
    default: scalecom::stop();
  }
}

// An array of exactly `bytes`, on the heap so that sanitizers see its ends, which begins
// `shift` bytes behind an allocation. Poisoned until written.
class Array {
 public:
  Array(int64_t bytes, int64_t shift)
      : bytes_(bytes), shift_(shift), data_(new unsigned char[static_cast<size_t>(bytes + shift)]) {
    memset(data_.get(), 0xa5, static_cast<size_t>(bytes + shift));
  }
  Array(const Array& other) : Array(other.bytes_, other.shift_) {
    memcpy(get(), other.get(), static_cast<size_t>(bytes_));
  }
  void* get() const { return data_.get() + shift_; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  int64_t shift_;
  std::unique_ptr<unsigned char[]> data_;
};

struct Shape {
  int64_t elements;
  int64_t chunk_size;
  int64_t chunk_keep;
  int64_t tail_keep;
};

inline int64_t round_even(double value) { return static_cast<int64_t>(nearbyint(value)); }

// chunk_size and kept numbers as the Python layer works them out of a ratio.
inline Shape chunked(int64_t elements, double ratio, int64_t keep) {
  Shape s;
  s.elements = elements;
  s.chunk_size = std::max<int64_t>(1, round_even(static_cast<double>(keep) * ratio));
  s.chunk_keep = std::min(keep, s.chunk_size);
  const int64_t tail = elements % s.chunk_size;
  s.tail_keep =
      std::min(s.chunk_keep, std::max<int64_t>(1, round_even(static_cast<double>(tail) / ratio)));
  return s;
}

inline Shape exact(int64_t elements, int64_t keep) {
  const int64_t size = std::max<int64_t>(1, elements);
  return {elements, size, std::min(keep, size), 1};
}

enum class Data { kNormal, kTies, kZero, kRising, kNonfinite, kHuge, kTiny };
constexpr Data kAllData[] = {Data::kNormal,    Data::kTies, Data::kZero, Data::kRising,
                             Data::kNonfinite, Data::kHuge, Data::kTiny};

inline double draw(Data data, int64_t i, std::mt19937_64& rng) {
  std::normal_distribution<double> normal;
  switch (data) {
    case Data::kNormal: return normal(rng) * 1e-2;
    case Data::kTies: return static_cast<double>(static_cast<int64_t>(rng() % 7) - 3);
    case Data::kZero: return rng() % 2 ? 0.0 : -0.0;
    case Data::kRising: return static_cast<double>(i) * 1e-3 * (rng() % 2 ? 1 : -1);
    case Data::kNonfinite: {
      const uint64_t dice = rng() % 97;
      return dice == 0 ? NAN : dice == 1 ? INFINITY : dice == 2 ? -INFINITY : normal(rng);
    }
    case Data::kHuge: return normal(rng) * 2e38;
    // A float32: what float64 just below the smallest normal one becomes is the processor's choice.
    case Data::kTiny: return static_cast<float>(normal(rng) * 1e-38);
  }
  return 0;
}

struct TensorList {
  int32_t gradient_type;
  int32_t wire_type;
  bool in_place;  // whether p takes the gradient's place
  std::vector<scalecom_tensor> tensors;
  std::vector<Array> arrays;  // kPointers for each tensor, in their order

  static constexpr int kPointers = 7;

  // `shift` misaligns the arrays by as many elements. p takes the place of float32 gradients of
  // odd seeds.
  TensorList(const std::vector<Shape>& shapes, int32_t gradient_type_, int32_t wire_type_,
             Data data, int shift, uint64_t seed)
      : gradient_type(gradient_type_),
        wire_type(wire_type_),
        in_place(gradient_type == SCALECOM_FLOAT32 && seed % 2 == 1) {
    std::mt19937_64 rng(seed);
    const int64_t dense = type_bytes(gradient_type);
    const int64_t wire = type_bytes(wire_type);
    arrays.reserve(kPointers * shapes.size());
    for (const Shape& s : shapes) {
      scalecom_tensor t = {};
      t.elements = s.elements;
      t.chunk_size = s.chunk_size;
      t.chunk_keep = s.chunk_keep;
      t.tail_keep = s.tail_keep;
      t.offset_bytes = scalecom_offset_bytes(s.chunk_size);
      const int64_t kept = scalecom_tensor_kept(&t);
      const int64_t sizes[kPointers] = {s.elements * dense,    s.elements * 4, s.elements * 4,
                                        kept * t.offset_bytes, kept * wire,    kept * wire,
                                        s.elements * dense};
      const int64_t widths[kPointers] = {dense, 4, 4, t.offset_bytes, wire, wire, dense};
      for (int i = 0; i < kPointers; ++i) arrays.emplace_back(sizes[i], shift * widths[i]);
      tensors.push_back(t);
    }
    bind();
    for (scalecom_tensor& t : tensors) {
      for (int64_t i = 0; i < t.elements; ++i) {
        store(const_cast<void*>(t.gradient), gradient_type, i, draw(data, i, rng));
        // Residuals stay finite: only a gradient brings NaN and infinity.
        const double m = draw(data == Data::kNonfinite ? Data::kNormal : data, i, rng);
        const_cast<float*>(t.residual)[i] = static_cast<float>(std::max(-3e38, std::min(3e38, m)));
      }
    }
  }
  TensorList(const TensorList& other)
      : gradient_type(other.gradient_type),
        wire_type(other.wire_type),
        in_place(other.in_place),
        tensors(other.tensors),
        arrays(other.arrays) {
    bind();
  }

  const scalecom_tensor* list() const { return tensors.data(); }
  int64_t count() const { return static_cast<int64_t>(tensors.size()); }

  // What an all-reduce might have returned.
  void fill_reduced(uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (scalecom_tensor& t : tensors) {
      const int64_t kept = scalecom_tensor_kept(&t);
      for (int64_t i = 0; i < kept; ++i) {
        store(const_cast<void*>(t.reduced), wire_type, i, draw(Data::kNormal, i, rng) * 3);
      }
    }
  }

 private:
  void bind() {
    for (size_t i = 0; i < tensors.size(); ++i) {
      scalecom_tensor& t = tensors[i];
      const Array* a = &arrays[kPointers * i];
      t.gradient = a[0].get();
      t.residual = static_cast<float*>(a[1].get());
      t.compensated = static_cast<float*>(a[in_place ? 0 : 2].get());
      t.offsets = a[3].get();
      t.values = a[4].get();
      t.reduced = a[5].get();
      t.output = a[6].get();
    }
  }
};

// Variables and slices for them.
struct SlicesList {
  std::vector<std::vector<float>> variables;
  std::vector<std::vector<int64_t>> indices;
  std::vector<std::vector<float>> values;

  explicit SlicesList(uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (const int64_t elements : {0, 1, 1000, 70000}) {
      variables.emplace_back();
      for (int64_t i = 0; i < elements; ++i) {
        variables.back().push_back(static_cast<float>(draw(Data::kNormal, i, rng)));
      }
      indices.emplace_back();
      values.emplace_back();
      for (int64_t i = -3; i < elements + 3; i += 1 + static_cast<int64_t>(rng() % 5)) {
        indices.back().push_back(i);
        values.back().push_back(static_cast<float>(draw(Data::kNormal, i, rng)));
      }
    }
  }

  std::vector<scalecom_slices> list() {
    std::vector<scalecom_slices> slices;
    for (size_t i = 0; i < variables.size(); ++i) {
      slices.push_back({static_cast<int64_t>(variables[i].size()),
                        static_cast<int64_t>(indices[i].size()), variables[i].data(),
                        indices[i].data(), values[i].data()});
    }
    return slices;
  }
};

}  // namespace test

#endif  // SCALECOM_TESTS_TENSOR_LIST_H_
