// Four lanes of the compiler's vector types, for any processor: a register of NEON or SSE2. See
// simd_avx512.h for the conventions.
#ifndef SCALECOM_CORE_CPU_SIMD_PORTABLE_H_
#define SCALECOM_CORE_CPU_SIMD_PORTABLE_H_

struct Simd {
  static constexpr int kLanes = 4;
  typedef float Float __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Key __attribute__((vector_size(4 * kLanes)));
  using Mask = Key;  // -1 where true, else 0
  typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));

  static Float load(const float* p) { return load_as<Float>(p); }
  template <typename T>
  static Float load(const T* p) {
    Float v;
    for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
    return v;
  }
  template <typename T>
  static Float load_first(const T* p, int64_t n) {
    Float v = {};
    for (int i = 0; i < n; ++i) v[i] = to_float(p[i]);
    return v;
  }
  static void store(float* p, Float v) { memcpy(p, &v, sizeof v); }
  static void store_first(float* p, int64_t n, Float v) {
    memcpy(p, &v, static_cast<size_t>(n) * sizeof(float));
  }
  static void store(int32_t* p, Key v) { memcpy(p, &v, sizeof v); }
  static Key load_keys(const int32_t* p) { return load_as<Key>(p); }

  static constexpr int kStreamBytes = 16;
  static void stream(void* to, const void* from) { memcpy(to, from, kStreamBytes); }
  static void stream_fence() {}

  static Float splat(float v) { return Float{} + v; }
  static Float add(Float a, Float b) { return a + b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Key key(Float v) {
    const Key magnitude = bits_of(v) & 0x7fffffff;
    return choose(magnitude < kNanKey, magnitude, splat(kNanKey));
  }

  static Key splat(int32_t v) { return Key{} + v; }
  static Key iota() { return Key{0, 1, 2, 3}; }
  // Offsets run through the whole of uint32, so the sum wraps.
  static Key add(Key a, Key b) {
    return reinterpret_cast<Key>(reinterpret_cast<Bits>(a) + reinterpret_cast<Bits>(b));
  }
  static Key max(Key a, Key b) { return choose(a > b, a, b); }
  static Mask greater(Key a, Key b) { return a > b; }
  static Mask equal(Key a, Key b) { return a == b; }
  static Mask first(int64_t n) { return iota() < splat(static_cast<int32_t>(n)); }
  static Key choose(Mask m, Key yes, Key no) { return (m & yes) | (~m & no); }
  static Key increment_if(Key count, Mask m) { return count - m; }
  static uint32_t bits(Mask m) {
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(m[i] & 1) << i;
    return bits;
  }
  static int32_t reduce_max(Key v) {
    int32_t best = v[0];
    for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
    return best;
  }
  static uint32_t reduce_min_unsigned(Key v) {
    uint32_t best = static_cast<uint32_t>(v[0]);
    for (int i = 1; i < kLanes; ++i) {
      const uint32_t value = static_cast<uint32_t>(v[i]);
      best = value < best ? value : best;
    }
    return best;
  }

  static int count_greater(const int64_t* values, int n, int64_t value) {
    int count = 0;
    for (int i = 0; i < n; ++i) count += values[i] > value;
    return count;
  }

 private:
  template <typename Vector, typename T>
  static Vector load_as(const T* p) {
    Vector v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  static Key bits_of(Float v) {
    Key bits;
    memcpy(&bits, &v, sizeof v);
    return bits;
  }
};

#endif  // SCALECOM_CORE_CPU_SIMD_PORTABLE_H_
