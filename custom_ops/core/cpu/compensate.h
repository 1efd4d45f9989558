// p = residual + gradient, which every pass over a gradient writes. Included by each kernels_*.cc,
// in its namespace.

// Of a tensor from one of its elements on; elements count from there.
template <typename T>
class Compensation {
 public:
  Compensation(const scalecom_tensor& t, int64_t start)
      : gradient_(static_cast<const T*>(t.gradient) + start),
        residual_(t.residual + start),
        compensated_(t.compensated + start) {}

  // Elements before the first that a whole vector is written to with an aligned store: one that
  // crosses a cache line takes twice the time.
  int64_t unaligned() const {
    constexpr uintptr_t kBytes = sizeof(float) * Simd::kLanes;
    return static_cast<int64_t>((0 - reinterpret_cast<uintptr_t>(compensated_)) % kBytes /
                                sizeof(float));
  }

  Simd::Key key(int64_t i) const {
    const Simd::Float p = Simd::add(Simd::load(residual_ + i), Simd::load(gradient_ + i));
    Simd::store(compensated_ + i, p);
    return Simd::key(p);
  }

  // Of n < kLanes elements; `behind` in the other lanes.
  Simd::Key key_first(int64_t i, int64_t n, int32_t behind) const {
    const Simd::Float p =
        Simd::add(Simd::load_first(residual_ + i, n), Simd::load_first(gradient_ + i, n));
    Simd::store_first(compensated_ + i, n, p);
    return Simd::choose(Simd::first(n), Simd::key(p), Simd::splat(behind));
  }

 private:
  const T* gradient_;
  const float* residual_;
  float* compensated_;
};

// Whether the highest key says that something is not finite.
inline bool any_nonfinite(Simd::Key highest) { return Simd::reduce_max(highest) >= kInfinityKey; }

template <typename T>
bool compensate(const scalecom_tensor& t, int64_t begin, int64_t end) {
  const Compensation<T> p(t, begin);
  const int64_t size = end - begin;
  Simd::Key highest = Simd::splat(0);
  int64_t i = 0;
  // In pairs: AVX-512 one by one took a seventh longer.
  for (; i + 2 * Simd::kLanes <= size; i += 2 * Simd::kLanes) {
    const Simd::Key first = p.key(i);
    highest = Simd::max(highest, Simd::max(first, p.key(i + Simd::kLanes)));
  }
  for (; i + Simd::kLanes <= size; i += Simd::kLanes) highest = Simd::max(highest, p.key(i));
  if (i < size) highest = Simd::max(highest, p.key_first(i, size - i, 0));
  return any_nonfinite(highest);
}
