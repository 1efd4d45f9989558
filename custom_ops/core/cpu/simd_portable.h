// Eight lanes in plain C++, for any processor. See simd_avx512.h for the conventions.
#ifndef SCALECOM_CORE_CPU_SIMD_PORTABLE_H_
#define SCALECOM_CORE_CPU_SIMD_PORTABLE_H_

struct Simd {
  static constexpr int kLanes = 8;
  struct Float {
    float lane[kLanes];
  };
  struct Key {
    int32_t lane[kLanes];
  };
  struct Mask {
    bool lane[kLanes];
  };

  template <typename Out, typename Function>
  static Out each(Function function) {
    Out out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = function(i);
    return out;
  }

  template <typename T>
  static Float load(const T* p) {
    return each<Float>([&](int i) { return to_float(p[i]); });
  }
  template <typename T>
  static Float load_first(const T* p, int64_t n) {
    return each<Float>([&](int i) { return i < n ? to_float(p[i]) : 0.0f; });
  }
  static void store(float* p, Float v) { memcpy(p, v.lane, sizeof v.lane); }
  static void store_first(float* p, int64_t n, Float v) {
    memcpy(p, v.lane, static_cast<size_t>(n) * sizeof(float));
  }
  static void store(int32_t* p, Key v) { memcpy(p, v.lane, sizeof v.lane); }
  static Key load_keys(const int32_t* p) {
    return each<Key>([&](int i) { return p[i]; });
  }

  static constexpr int kStreamBytes = 32;
  static void stream(void* to, const void* from) { memcpy(to, from, kStreamBytes); }
  static void stream_fence() {}

  static Float splat(float v) {
    return each<Float>([&](int) { return v; });
  }
  static Float add(Float a, Float b) {
    return each<Float>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Float mul(Float a, Float b) {
    return each<Float>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Key key(Float v) {
    return each<Key>([&](int i) {
      const int32_t magnitude = static_cast<int32_t>(float_bits(v.lane[i]) & 0x7fffffffu);
      return magnitude < kNanKey ? magnitude : kNanKey;
    });
  }

  static Key splat(int32_t v) {
    return each<Key>([&](int) { return v; });
  }
  static Key iota() {
    return each<Key>([](int i) { return i; });
  }
  // Offsets run through the whole of uint32, so the sum wraps.
  static Key add(Key a, Key b) {
    return each<Key>([&](int i) {
      return static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) +
                                  static_cast<uint32_t>(b.lane[i]));
    });
  }
  static Key max(Key a, Key b) {
    return each<Key>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Mask greater(Key a, Key b) {
    return each<Mask>([&](int i) { return a.lane[i] > b.lane[i]; });
  }
  static Mask equal(Key a, Key b) {
    return each<Mask>([&](int i) { return a.lane[i] == b.lane[i]; });
  }
  static Mask first(int64_t n) {
    return each<Mask>([&](int i) { return i < n; });
  }
  static Key choose(Mask m, Key yes, Key no) {
    return each<Key>([&](int i) { return m.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  static Key increment_if(Key count, Mask m) {
    return each<Key>([&](int i) { return count.lane[i] + m.lane[i]; });
  }
  static uint32_t bits(Mask m) {
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= uint32_t{m.lane[i]} << i;
    return bits;
  }
  static int32_t reduce_max(Key v) {
    int32_t best = v.lane[0];
    for (int i = 1; i < kLanes; ++i) best = v.lane[i] > best ? v.lane[i] : best;
    return best;
  }
  static uint32_t reduce_min_unsigned(Key v) {
    uint32_t best = static_cast<uint32_t>(v.lane[0]);
    for (int i = 1; i < kLanes; ++i) {
      const uint32_t value = static_cast<uint32_t>(v.lane[i]);
      best = value < best ? value : best;
    }
    return best;
  }

  static int count_greater(const int64_t* values, int n, int64_t value) {
    int count = 0;
    for (int i = 0; i < n; ++i) count += values[i] > value;
    return count;
  }
};

#endif  // SCALECOM_CORE_CPU_SIMD_PORTABLE_H_
