// Eight lanes of AVX2 (with F16C). See simd_avx512.h for the conventions.
#ifndef SCALECOM_CORE_CPU_SIMD_AVX2_H_
#define SCALECOM_CORE_CPU_SIMD_AVX2_H_

struct Simd {
  static constexpr int kLanes = 8;
  using Float = __m256;
  using Key = __m256i;
  using Mask = __m256i;

  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static Float load(const float16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Float load(const bfloat16* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
  static Float load(const double* p) {
    const __m128 low = _mm256_cvtpd_ps(_mm256_loadu_pd(p));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low),
                                _mm256_cvtpd_ps(_mm256_loadu_pd(p + 4)), 1);
  }

  static Float load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  // No masked loads of these types here: through a copy.
  template <typename T>
  static Float load_first(const T* p, int64_t n) {
    T copy[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) copy[i] = p[i];
    return load(copy);
  }

  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static void store_first(float* p, int64_t n, Float v) { _mm256_maskstore_ps(p, first(n), v); }
  static void store(int32_t* p, Key v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static Key load_keys(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }

  static constexpr int kStreamBytes = 32;
  static void stream(void* to, const void* from) {
    _mm256_stream_si256(static_cast<__m256i*>(to),
                        _mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static void stream_fence() { _mm_sfence(); }

  static Float splat(float v) { return _mm256_set1_ps(v); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Key key(Float v) {
    const Key magnitude = _mm256_and_si256(_mm256_castps_si256(v), splat(0x7fffffff));
    return _mm256_min_epi32(magnitude, splat(kNanKey));
  }

  static Key splat(int32_t v) { return _mm256_set1_epi32(v); }
  static Key iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static Key add(Key a, Key b) { return _mm256_add_epi32(a, b); }
  static Key max(Key a, Key b) { return _mm256_max_epi32(a, b); }
  static Mask greater(Key a, Key b) { return _mm256_cmpgt_epi32(a, b); }
  static Mask equal(Key a, Key b) { return _mm256_cmpeq_epi32(a, b); }
  static Mask first(int64_t n) { return greater(splat(static_cast<int32_t>(n)), iota()); }
  static Key choose(Mask m, Key yes, Key no) { return _mm256_blendv_epi8(no, yes, m); }
  static Key increment_if(Key count, Mask m) { return _mm256_sub_epi32(count, m); }
  static uint32_t bits(Mask m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m)));
  }
  static int32_t reduce_max(Key v) {
    __m128i r = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0xb1));
    return _mm_cvtsi128_si32(r);
  }
  static uint32_t reduce_min_unsigned(Key v) {
    __m128i r = _mm_min_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    r = _mm_min_epu32(r, _mm_shuffle_epi32(r, 0x4e));
    r = _mm_min_epu32(r, _mm_shuffle_epi32(r, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(r));
  }

  static int count_greater(const int64_t* values, int n, int64_t value) {
    const __m256i pivot = _mm256_set1_epi64x(value);
    __m256i count = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 4) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
      count = _mm256_sub_epi64(count, _mm256_cmpgt_epi64(v, pivot));
    }
    const __m128i sum =
        _mm_add_epi64(_mm256_castsi256_si128(count), _mm256_extracti128_si256(count, 1));
    return static_cast<int>(_mm_extract_epi64(sum, 0) + _mm_extract_epi64(sum, 1));
  }
};

#endif  // SCALECOM_CORE_CPU_SIMD_AVX2_H_
