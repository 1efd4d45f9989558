// Sixteen lanes of AVX-512. The three simd_*.h files offer the same members; the kernels
// are written against them. Keys are the bits of |p|, one and the same for every NaN: they are
// non-negative int32, so signed comparison orders them and -1 marks an empty lane.
#ifndef SCALECOM_CORE_CPU_SIMD_AVX512_H_
#define SCALECOM_CORE_CPU_SIMD_AVX512_H_

struct Simd {
  static constexpr int kLanes = 16;
  using Float = __m512;
  using Key = __m512i;
  using Mask = __mmask16;

  static Mask prefix(int64_t n) { return static_cast<Mask>((1u << n) - 1u); }

  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static Float load(const float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Float load(const bfloat16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Float load(const double* p) {
    return join(_mm512_cvtpd_ps(_mm512_loadu_pd(p)), _mm512_cvtpd_ps(_mm512_loadu_pd(p + 8)));
  }

  // The first n < kLanes elements, zeros behind them; touches no others.
  static Float load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(prefix(n), p); }
  static Float load_first(const float16* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(prefix(n), p));
  }
  static Float load_first(const bfloat16* p, int64_t n) {
    return widen(_mm256_maskz_loadu_epi16(prefix(n), p));
  }
  static Float load_first(const double* p, int64_t n) {
    const Mask mask = prefix(n);
    const __mmask8 low = static_cast<__mmask8>(mask);
    const __mmask8 high = static_cast<__mmask8>(mask >> 8);
    return join(_mm512_cvtpd_ps(_mm512_maskz_loadu_pd(low, p)),
                _mm512_cvtpd_ps(_mm512_maskz_loadu_pd(high, p + 8)));
  }

  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static void store_first(float* p, int64_t n, Float v) { _mm512_mask_storeu_ps(p, prefix(n), v); }
  static void store(int32_t* p, Key v) { _mm512_storeu_si512(p, v); }
  static Key load_keys(const int32_t* p) { return _mm512_loadu_si512(p); }

  // Writes kStreamBytes past the cache: from any address to an aligned one.
  static constexpr int kStreamBytes = 64;
  static void stream(void* to, const void* from) {
    _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
  static void stream_fence() { _mm_sfence(); }

  static Float splat(float v) { return _mm512_set1_ps(v); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Key key(Float v) {
    const Key magnitude = _mm512_and_si512(_mm512_castps_si512(v), splat(0x7fffffff));
    return _mm512_min_epi32(magnitude, splat(kNanKey));
  }

  static Key splat(int32_t v) { return _mm512_set1_epi32(v); }
  static Key iota() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static Key add(Key a, Key b) { return _mm512_add_epi32(a, b); }
  static Key max(Key a, Key b) { return _mm512_max_epi32(a, b); }
  static Mask greater(Key a, Key b) { return _mm512_cmpgt_epi32_mask(a, b); }
  static Mask equal(Key a, Key b) { return _mm512_cmpeq_epi32_mask(a, b); }
  static Mask first(int64_t n) { return prefix(n); }
  static Key choose(Mask m, Key yes, Key no) { return _mm512_mask_mov_epi32(no, m, yes); }
  static Key increment_if(Key count, Mask m) {
    return _mm512_mask_add_epi32(count, m, count, _mm512_set1_epi32(1));
  }
  static uint32_t bits(Mask m) { return m; }
  static int32_t reduce_max(Key v) { return _mm512_reduce_max_epi32(v); }
  static uint32_t reduce_min_unsigned(Key v) { return _mm512_reduce_min_epu32(v); }

  // How many of n values (a multiple of 8, non-negative) exceed `value`.
  static int count_greater(const int64_t* values, int n, int64_t value) {
    const __m512i pivot = _mm512_set1_epi64(value);
    int count = 0;
    for (int i = 0; i < n; i += 8) {
      const __mmask8 above = _mm512_cmpgt_epi64_mask(_mm512_loadu_si512(values + i), pivot);
      count += __builtin_popcount(above);
    }
    return count;
  }

 private:
  static Float widen(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
  static Float join(__m256 low, __m256 high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
};

#endif  // SCALECOM_CORE_CPU_SIMD_AVX512_H_
