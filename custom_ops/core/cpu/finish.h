// Filter, scatter and the finite check. Included by each kernels_*.cc, in its namespace.
//
// Filter and scatter go over memory one after the other even when both are wanted: they share
// no line, and streamed stores between the loads and stores of the filter slow both.

// The selected elements of one block of elements.
struct BlockEntries {
  // Distinct offsets fill at most the block; corrupt ones must not write beyond.
  static constexpr int kCapacity = static_cast<int>(kBlock);
  int size = 0;
  int32_t position[kCapacity];  // in the block
  int64_t entry[kCapacity];

  void collect(const scalecom_tensor& t, int64_t begin, int64_t end) {
    size = 0;
    const int64_t last = (end - 1) / t.chunk_size;
    for (int64_t chunk = begin / t.chunk_size; chunk <= last; ++chunk) {
      const EntryRange range = chunk_entries(t, chunk, begin, end);
      for (int64_t i = range.first; i < range.last && size < kCapacity; ++i) {
        const int64_t element = entry_element(t, chunk, i);
        if (element < begin || element >= end) continue;
        position[size] = static_cast<int32_t>(element - begin);
        entry[size++] = i;
      }
    }
  }
};

template <typename T>
void filter(const scalecom_tensor& t, int64_t begin, int64_t end, const FinishOptions& options) {
  const Simd::Float beta = Simd::splat(options.beta);
  const float forget = 1.0f - options.beta;
  alignas(64) float before[kBlock];
  BlockEntries selected;
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t size = minimum(kBlock, end - start);
    float* residual = t.residual + start;
    const T* gradient = static_cast<const T*>(t.gradient) + start;
    // First the sweep, in the order that memory likes, keeping what it overwrites: looking
    // up the selected before it would stop the hardware's prefetching at each of them.
    int64_t i = 0;
    for (; i + Simd::kLanes <= size; i += Simd::kLanes) {
      const Simd::Float m = Simd::load(residual + i);
      Simd::store(before + i, m);
      Simd::store(residual + i, Simd::add(m, Simd::mul(beta, Simd::load(gradient + i))));
    }
    if (i < size) {
      const int64_t rest = size - i;
      const Simd::Float m = Simd::load_first(residual + i, rest);
      Simd::store_first(before + i, rest, m);
      Simd::store_first(residual + i, rest,
                        Simd::add(m, Simd::mul(beta, Simd::load_first(gradient + i, rest))));
    }
    selected.collect(t, start, start + size);
    for (int j = 0; j < selected.size; ++j) {
      const int32_t at = selected.position[j];
      const float p = before[at] + to_float(gradient[at]);
      const float sent = wire_round(wire_limited(p, options.wire_limit), options.wire_type);
      const float unsent = p - sent;
      residual[at] = forget * before[at] + options.beta * unsent;
    }
  }
}

// Copies past the cache where the destination is aligned.
inline void stream_copy(void* to, const void* from, size_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  const size_t head = (0 - reinterpret_cast<uintptr_t>(out)) % Simd::kStreamBytes;
  size_t i = head < bytes ? head : bytes;
  memcpy(out, in, i);
  for (; i + Simd::kStreamBytes <= bytes; i += Simd::kStreamBytes) Simd::stream(out + i, in + i);
  memcpy(out + i, in + i, bytes - i);
}

// A block of output, put together in the L1 cache and written once: a second write to a line
// that was streamed would fetch it back from memory.
template <typename T>
class OutputBlock {
 public:
  void fill(const scalecom_tensor& t, int64_t begin, int64_t end, int32_t wire_type) {
    for (int i = 0; i < selected_.size; ++i) dense_[selected_.position[i]] = T{};
    selected_.collect(t, begin, end);
    for (int i = 0; i < selected_.size; ++i) {
      from_float(wire_load(t.reduced, wire_type, selected_.entry[i]),
                 &dense_[selected_.position[i]]);
    }
    begin_ = begin;
    size_ = end - begin;
  }

  void write(T* output, bool stream) const {
    const size_t bytes = static_cast<size_t>(size_) * sizeof(T);
    if (stream) {
      stream_copy(output + begin_, dense_, bytes);
    } else {
      memcpy(output + begin_, dense_, bytes);
    }
  }

 private:
  alignas(64) T dense_[kBlock] = {};
  BlockEntries selected_;
  int64_t begin_ = 0;
  int64_t size_ = 0;
};

template <typename T>
void scatter(const scalecom_tensor& t, int64_t begin, int64_t end, const FinishOptions& options) {
  T* output = static_cast<T*>(t.output);
  // The next block is filled before this one is written: stores leave the processor in
  // order, and its few would wait behind a block of streamed ones, and their loads for them.
  OutputBlock<T> blocks[2];
  int current = 0;
  blocks[current].fill(t, begin, minimum(begin + kBlock, end), options.wire_type);
  for (int64_t next = begin + kBlock; next < end; next += kBlock) {
    blocks[1 - current].fill(t, next, minimum(next + kBlock, end), options.wire_type);
    blocks[current].write(output, options.stream);
    current = 1 - current;
  }
  blocks[current].write(output, options.stream);
  // Streamed stores are not ordered with what the caller does next.
  if (options.stream) Simd::stream_fence();
}

// Whether `load(i)` is finite for all i in [begin, end); load_first(i, n) loads only n elements.
template <typename Load, typename LoadFirst>
inline bool any_nonfinite(int64_t begin, int64_t end, Load load, LoadFirst load_first) {
  // Both halves at once: memory serves several streams faster than one.
  const int64_t half = (end - begin) / (2 * Simd::kLanes) * Simd::kLanes;
  Simd::Key highest = Simd::splat(0);
  int64_t i = begin;
  for (; i < begin + half; i += Simd::kLanes) {
    highest = Simd::max(highest, Simd::max(Simd::key(load(i)), Simd::key(load(i + half))));
  }
  for (i += half; i + Simd::kLanes <= end; i += Simd::kLanes) {
    highest = Simd::max(highest, Simd::key(load(i)));
  }
  if (i < end) highest = Simd::max(highest, Simd::key(load_first(i, end - i)));
  return Simd::reduce_max(highest) >= kInfinityKey;
}

template <typename T>
bool check(const scalecom_tensor& t, int64_t begin, int64_t end) {
  const float* m = t.residual;
  const T* g = static_cast<const T*>(t.gradient);
  if (m == nullptr) {
    return any_nonfinite(
        begin, end, [=](int64_t i) { return Simd::load(g + i); },
        [=](int64_t i, int64_t n) { return Simd::load_first(g + i, n); });
  }
  return any_nonfinite(
      begin, end, [=](int64_t i) { return Simd::add(Simd::load(m + i), Simd::load(g + i)); },
      [=](int64_t i, int64_t n) {
        return Simd::add(Simd::load_first(m + i, n), Simd::load_first(g + i, n));
      });
}
