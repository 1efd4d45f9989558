// Filter and scatter. Included by each kernels_*.cc, in its namespace.

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

inline void filter(const scalecom_tensor& t, int64_t begin, int64_t end, float beta) {
  const Simd::Float keep = Simd::splat(beta);
  const Simd::Float forget = Simd::splat(1.0f - beta);
  const float* residual = t.residual;
  float* unsent = t.compensated;
  const auto filtered = [&](Simd::Float m, Simd::Float u) {
    return Simd::add(Simd::mul(forget, m), Simd::mul(keep, u));
  };
  int64_t i = begin;
  for (; i + Simd::kLanes <= end; i += Simd::kLanes) {
    Simd::store(unsent + i, filtered(Simd::load(residual + i), Simd::load(unsent + i)));
  }
  if (i < end) {
    const int64_t rest = end - i;
    Simd::store_first(
        unsent + i, rest,
        filtered(Simd::load_first(residual + i, rest), Simd::load_first(unsent + i, rest)));
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
void scatter(const scalecom_tensor& t, int64_t begin, int64_t end, int32_t wire_type, bool stream) {
  T* output = static_cast<T*>(t.output);
  // The next block is filled before this one is written: stores leave the processor in
  // order, and its few would wait behind a block of streamed ones, and their loads for them.
  OutputBlock<T> blocks[2];
  int current = 0;
  blocks[current].fill(t, begin, minimum(begin + kBlock, end), wire_type);
  for (int64_t next = begin + kBlock; next < end; next += kBlock) {
    blocks[1 - current].fill(t, next, minimum(next + kBlock, end), wire_type);
    blocks[current].write(output, stream);
    current = 1 - current;
  }
  blocks[current].write(output, stream);
  // Streamed stores are not ordered with what the caller does next.
  if (stream) Simd::stream_fence();
}
