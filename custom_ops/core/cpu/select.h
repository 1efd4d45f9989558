// Largest |p| of each chunk, one or a few. Included by each kernels_*.cc, in its namespace.

// One per chunk: every lane keeps its best key and where it was first seen.
template <typename T>
bool select_one(const scalecom_tensor& t, int64_t begin, int64_t end) {
  using Key = Simd::Key;
  int32_t highest = 0;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const Compensation<T> p(t, chunk * t.chunk_size);
    const int64_t length = chunk_length(t, chunk);
    Key best = Simd::splat(-1);
    Key where = Simd::splat(0);
    const auto look = [&](Key key, Key offset) {
      where = Simd::choose(Simd::greater(key, best), offset, where);
      best = Simd::max(best, key);
    };
    int64_t i = minimum(p.unaligned(), length);
    if (i > 0) look(p.key_first(0, i, -1), Simd::iota());
    Key offset = Simd::add(Simd::iota(), Simd::splat(static_cast<int32_t>(i)));
    for (; i + Simd::kLanes <= length; i += Simd::kLanes) {
      look(p.key(i), offset);
      offset = Simd::add(offset, Simd::splat(Simd::kLanes));
    }
    if (i < length) look(p.key_first(i, length - i, -1), offset);
    const int32_t top = Simd::reduce_max(best);
    offset_store(t, chunk,
                 Simd::reduce_min_unsigned(
                     Simd::choose(Simd::equal(best, Simd::splat(top)), where, Simd::splat(-1))));
    highest = top > highest ? top : highest;
  }
  return highest >= kInfinityKey;
}

// The best few of a chunk so far: key and offset in one integer that orders as promised
// (larger key first, then lower offset).
class Few {
 public:
  explicit Few(int keep) : keep_(keep) {}

  // Smallest key that would still enter, given that offsets arrive in increasing order.
  int32_t floor() const {
    return size_ < keep_ ? 0 : static_cast<int32_t>(entries_[keep_ - 1] >> 32) + 1;
  }

  // True if full: sort() before the next.
  bool push(int32_t key, int64_t offset) {
    entries_[size_++] = (int64_t{key} << 32) | (0xffffffff - offset);
    return size_ == kCapacity;
  }

  // Orders the entries and drops all but the best `keep`. Ranks instead of a sort: the
  // entries are few and distinct, and counting has no branch to mispredict.
  void sort() {
    const int padded = (size_ + 7) & ~7;
    for (int i = size_; i < padded; ++i) entries_[i] = 0;
    int64_t sorted[kCapacity];
    for (int i = 0; i < size_; ++i) {
      sorted[Simd::count_greater(entries_, padded, entries_[i])] = entries_[i];
    }
    size_ = size_ < keep_ ? size_ : keep_;
    memcpy(entries_, sorted, static_cast<size_t>(size_) * sizeof sorted[0]);
  }

  uint32_t offset(int rank) const { return 0xffffffffu - static_cast<uint32_t>(entries_[rank]); }

 private:
  static constexpr int kCapacity = 64;
  const int keep_;
  int size_ = 0;
  alignas(64) int64_t entries_[kCapacity];
};

// Keys of up to kSelectBlock elements, and their maxima in 32 groups: element i is in group
// i mod 32.
constexpr int64_t kSelectBlock = 1024;
constexpr int kGroups = 32;
constexpr int kGroupVectors = kGroups / Simd::kLanes;

struct KeyBlock {
  alignas(64) int32_t keys[kSelectBlock];
  Simd::Key groups[kGroupVectors];
  int64_t padded;  // length up to a multiple of kGroups; -1 behind the end

  // Of the elements [begin, begin + length) of p.
  template <typename T>
  int32_t fill(const Compensation<T>& p, int64_t begin, int64_t length) {
    for (int v = 0; v < kGroupVectors; ++v) groups[v] = Simd::splat(-1);
    int64_t i = 0;
    for (; i + kGroups <= length; i += kGroups) {
      for (int v = 0; v < kGroupVectors; ++v) {
        const int64_t at = i + v * Simd::kLanes;
        put(at, v, p.key(begin + at));
      }
    }
    padded = i;
    if (i < length) {
      padded = i + kGroups;
      for (int v = 0; v < kGroupVectors; ++v) {
        const int64_t at = i + v * Simd::kLanes;
        const int64_t rest = minimum(Simd::kLanes, maximum(0, length - at));
        put(at, v,
            rest == Simd::kLanes ? p.key(begin + at)
            : rest > 0           ? p.key_first(begin + at, rest, -1)
                                 : Simd::splat(-1));
      }
    }
    Simd::Key all = groups[0];
    for (int v = 1; v < kGroupVectors; ++v) all = Simd::max(all, groups[v]);
    return Simd::reduce_max(all);
  }

  // The keep-th largest of the group maxima. They belong to different elements, so the
  // keep-th largest element is no smaller; and few elements reach it (about 11 for 10 of
  // random data, 22 for 16).
  int32_t bound(int keep) const {
    alignas(64) int32_t maxima[kGroups];
    Simd::Key above[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) {
      Simd::store(maxima + v * Simd::kLanes, groups[v]);
      above[v] = Simd::splat(0);
    }
    for (int j = 0; j < kGroups; ++j) {
      const Simd::Key other = Simd::splat(maxima[j]);
      for (int v = 0; v < kGroupVectors; ++v) {
        above[v] = Simd::increment_if(above[v], Simd::greater(other, groups[v]));
      }
    }
    Simd::Key least = Simd::splat(INT32_MAX);
    for (int v = 0; v < kGroupVectors; ++v) {
      const Simd::Mask among = Simd::greater(Simd::splat(keep), above[v]);
      const Simd::Mask lower = Simd::greater(least, groups[v]);
      least = Simd::choose(among, Simd::choose(lower, groups[v], least), least);
    }
    return static_cast<int32_t>(Simd::reduce_min_unsigned(least));
  }

  // Pushes the elements with key >= bound; the block starts at `offset` in its chunk.
  void collect(int32_t bound, int64_t offset, Few* few) const {
    for (int64_t i = 0; i < padded; i += kGroups) {
      uint32_t hits = 0;
      const Simd::Key below = Simd::splat(bound - 1);
      for (int v = 0; v < kGroupVectors; ++v) {
        const Simd::Key key = Simd::load_keys(keys + i + v * Simd::kLanes);
        hits |= Simd::bits(Simd::greater(key, below)) << (v * Simd::kLanes);
      }
      for (; hits != 0; hits &= hits - 1) {
        const int64_t at = i + __builtin_ctz(hits);
        if (keys[at] < bound) continue;  // the bound rose within these 32
        if (few->push(keys[at], offset + at)) {
          few->sort();
          bound = few->floor();
        }
      }
    }
  }

 private:
  void put(int64_t at, int group_vector, Simd::Key key) {
    Simd::store(keys + at, key);
    groups[group_vector] = Simd::max(groups[group_vector], key);
  }
};

template <typename T>
bool select_few(const scalecom_tensor& t, int64_t begin, int64_t end) {
  int32_t highest = 0;
  KeyBlock block;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const Compensation<T> p(t, chunk * t.chunk_size);
    const int64_t length = chunk_length(t, chunk);
    const int keep = static_cast<int>(chunk_kept(t, chunk));
    Few few(keep);
    for (int64_t i = 0; i < length; i += kSelectBlock) {
      const int64_t size = minimum(kSelectBlock, length - i);
      const int32_t top = block.fill(p, i, size);
      highest = top > highest ? top : highest;
      int32_t bound = few.floor();
      if (top < bound) continue;
      // Below two elements a group the bound tells little.
      if (size >= 2 * kGroups) {
        const int32_t groups = block.bound(keep);
        bound = groups > bound ? groups : bound;
      }
      block.collect(bound, i, &few);
      few.sort();
    }
    for (int rank = 0; rank < keep; ++rank) {
      offset_store(t, chunk * t.chunk_keep + rank, few.offset(rank));
    }
  }
  return highest >= kInfinityKey;
}

template <typename T>
bool select_largest(const scalecom_tensor& t, int64_t begin, int64_t end) {
  return t.chunk_keep == 1 ? select_one<T>(t, begin, end) : select_few<T>(t, begin, end);
}

template <typename T>
SelectLoop select(int32_t selection) {
  switch (selection) {
    case SCALECOM_CHUNK: return select_largest<T>;
    default: return nullptr;
  }
}
