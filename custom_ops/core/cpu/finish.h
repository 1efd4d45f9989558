// Filter and scatter, in one pass where both are wanted; and the finite check. Included by
// each kernels_*.cc, in its namespace.

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
void filter_block(float* residual, const T* gradient, int64_t size, const BlockEntries& selected,
                  const void* values, const FinishOptions& options) {
  // What the selected become must be worked out before the sweep overwrites them.
  float kept[BlockEntries::kCapacity];
  const float forget = 1.0f - options.beta;
  for (int i = 0; i < selected.size; ++i) {
    const int32_t at = selected.position[i];
    const float sent = wire_load(values, options.wire_type, selected.entry[i]);
    const float unsent = (residual[at] + to_float(gradient[at])) - sent;
    kept[i] = forget * residual[at] + options.beta * unsent;
  }
  const Simd::Float beta = Simd::splat(options.beta);
  int64_t i = 0;
  for (; i + Simd::kLanes <= size; i += Simd::kLanes) {
    Simd::store(residual + i, Simd::add(Simd::load(residual + i),
                                        Simd::mul(beta, Simd::load(gradient + i))));
  }
  if (i < size) {
    const int64_t rest = size - i;
    Simd::store_first(residual + i, rest,
                      Simd::add(Simd::load_first(residual + i, rest),
                                Simd::mul(beta, Simd::load_first(gradient + i, rest))));
  }
  for (int j = 0; j < selected.size; ++j) residual[selected.position[j]] = kept[j];
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

template <typename T>
void finish(const scalecom_tensor& t, int64_t begin, int64_t end, const FinishOptions& options) {
  const T* gradient = static_cast<const T*>(t.gradient);
  T* output = static_cast<T*>(t.output);
  // A block of output is put together here and written once: a second write to a line that
  // was streamed would fetch it back from memory.
  alignas(64) T dense[kBlock] = {};
  BlockEntries selected;
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t size = minimum(kBlock, end - start);
    selected.collect(t, start, start + size);
    if (options.filter) {
      filter_block(t.residual + start, gradient + start, size, selected, t.values, options);
    }
    if (options.scatter) {
      for (int i = 0; i < selected.size; ++i) {
        from_float(wire_load(t.reduced, options.wire_type, selected.entry[i]),
                   &dense[selected.position[i]]);
      }
      const size_t bytes = static_cast<size_t>(size) * sizeof(T);
      if (options.stream) {
        stream_copy(output + start, dense, bytes);
      } else {
        memcpy(output + start, dense, bytes);
      }
      for (int i = 0; i < selected.size; ++i) dense[selected.position[i]] = T{};
    }
  }
  // Streamed stores are not ordered with what the caller does next.
  if (options.scatter && options.stream) Simd::stream_fence();
}

template <typename T>
bool check(const scalecom_tensor& t, int64_t begin, int64_t end) {
  const T* gradient = static_cast<const T*>(t.gradient);
  Simd::Key highest = Simd::splat(0);
  int64_t i = begin;
  for (; i + Simd::kLanes <= end; i += Simd::kLanes) {
    highest = Simd::max(highest, Simd::key(Simd::load(gradient + i)));
  }
  if (i < end) {
    highest = Simd::max(highest, Simd::key(Simd::load_first(gradient + i, end - i)));
  }
  return Simd::reduce_max(highest) >= kInfinityKey;
}
