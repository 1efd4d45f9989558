// Exact selection: counting elements by a radix of their keys, and writing out those above
// the threshold so found. Included by each kernels_*.cc, in its namespace.

// Calls visit(i, key, size) with `size` keys of consecutive elements from i on. The first pass
// makes p, the others read it.
template <typename T, typename Visit>
inline void for_each_new_keys(const scalecom_tensor& t, int64_t begin, int64_t end, Visit visit) {
  const Compensation<T> p(t, 0);
  int64_t i = begin;
  for (; i + Simd::kLanes <= end; i += Simd::kLanes) visit(i, p.key(i), int64_t{Simd::kLanes});
  if (i < end) visit(i, p.key_first(i, end - i, 0), end - i);
}

template <typename Visit>
inline void for_each_keys(const scalecom_tensor& t, int64_t begin, int64_t end, Visit visit) {
  int64_t i = begin;
  for (; i + Simd::kLanes <= end; i += Simd::kLanes) {
    visit(i, Simd::key(Simd::load(t.compensated + i)), int64_t{Simd::kLanes});
  }
  if (i < end) visit(i, Simd::key(Simd::load_first(t.compensated + i, end - i)), end - i);
}

// Most keys share a few bins, and an increment waits for the one before it to the same bin:
// neighbours count into different copies.
template <typename T>
bool count_first(const scalecom_tensor& t, int64_t begin, int64_t end, uint32_t* bins) {
  constexpr int kShift = radix_level(0).shift;
  constexpr int kBins = 1 << radix_level(0).bits;
  constexpr int kCopies = 4;
  uint32_t copies[kCopies][kBins] = {};
  Simd::Key highest = Simd::splat(0);
  for_each_new_keys<T>(t, begin, end, [&](int64_t, Simd::Key key, int64_t size) {
    int32_t keys[Simd::kLanes];
    Simd::store(keys, key);
    highest = Simd::max(highest, key);
    if (size == Simd::kLanes) {
      for (int j = 0; j < Simd::kLanes; ++j) ++copies[j % kCopies][keys[j] >> kShift];
    } else {
      for (int64_t j = 0; j < size; ++j) ++copies[0][keys[j] >> kShift];
    }
  });
  for (int bin = 0; bin < kBins; ++bin) {
    for (int c = 0; c < kCopies; ++c) bins[bin] += copies[c][bin];
  }
  return any_nonfinite(highest);
}

inline void count_next(const scalecom_tensor& t, int64_t begin, int64_t end, int number,
                       int32_t prefix, uint32_t* bins) {
  const RadixLevel level = radix_level(number);
  // Keys with this prefix lie in [low, low + span).
  const int32_t span = int32_t{1} << (level.shift + level.bits);
  const int32_t low = prefix & ~(span - 1);
  const Simd::Key below = Simd::splat(low - 1);
  const Simd::Key last = Simd::splat(low + (span - 1));
  for_each_keys(t, begin, end, [&](int64_t, Simd::Key key, int64_t size) {
    uint32_t hits = Simd::bits(Simd::greater(key, below)) & ~Simd::bits(Simd::greater(key, last));
    hits &= (1u << size) - 1u;
    if (hits == 0) return;
    int32_t keys[Simd::kLanes];
    Simd::store(keys, key);
    for (; hits != 0; hits &= hits - 1) {
      ++bins[radix_digit(level, keys[__builtin_ctz(hits)])];
    }
  });
}

inline void emit(const scalecom_tensor& t, int64_t begin, int64_t end, int32_t threshold,
                 int64_t ties, int64_t entry) {
  const Simd::Key below = Simd::splat(threshold - 1);
  for_each_keys(t, begin, end, [&](int64_t i, Simd::Key key, int64_t size) {
    uint32_t hits = Simd::bits(Simd::greater(key, below)) & ((1u << size) - 1u);
    if (hits == 0) return;
    int32_t keys[Simd::kLanes];
    Simd::store(keys, key);
    for (; hits != 0; hits &= hits - 1) {
      const int at = __builtin_ctz(hits);
      if (keys[at] == threshold && --ties < 0) continue;
      offset_store(t, entry++, static_cast<uint32_t>(i + at));
    }
  });
}
