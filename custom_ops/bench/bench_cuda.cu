// Times the CUDA functions against the device's own copy bandwidth, and exact selection against a
// radix select of all, CUB's top-k where the toolkit has it, and CUB's selection, in one run.
// Checks that all of these and CUB's stable sort find the same.
//
//   bench_cuda [elements] [rounds]
//
// The arrays are larger than the L2 cache, which each function's inputs have left by the
// time it runs again. A round times a copy and then every function, with events; % of copy
// compares within the round. Copy is cudaMemcpyAsync, counting bytes read and written.
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <thrust/iterator/counting_iterator.h>
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <functional>
#include <iterator>
#include <string>
#include <vector>
#if __has_include(<cub/device/device_topk.cuh>)  // from CCCL 3.2 on
#include <cub/device/device_topk.cuh>
#define SCALECOM_BENCH_TOPK
#endif

#include "bench/radix_select.cuh"
#include "scalecom/scalecom_cuda.h"

namespace {

struct Work {
  std::string name;
  double bytes;  // that must move
  std::function<void()> run;
  std::vector<double> seconds;
};

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}

void must(int32_t status) {
  if (status == SCALECOM_OK) return;
  fprintf(stderr, "%s\n", scalecom_status_text_cuda(status));
  exit(1);
}

void must_agree(const char* other, bool agrees) {
  if (agrees) return;
  fprintf(stderr, "FAILED: exact selection differs from %s\n", other);
  exit(1);
}

template <typename T>
T* allocate(int64_t n) {
  void* p = nullptr;
  must(cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(n, 1)) * sizeof(T)));
  return static_cast<T*>(p);
}

// About normal: the sum of four uniform numbers.
__global__ void fill(float* p, int64_t n, uint64_t salt) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull + salt;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  float sum = 0;
  for (int part = 0; part < 4; ++part, x >>= 16) sum += static_cast<float>(x & 0xffff);
  p[i] = (sum / 65536.0f - 2.0f) * 0.01f;
}

__global__ void narrow(const float* from, uint16_t* to, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[i] = static_cast<uint16_t>(__float_as_uint(from[i]) >> 16);
}

__device__ uint32_t key_of(float p) { return __float_as_uint(p) & 0x7fffffffu; }

__global__ void keys_of(const float* p, uint32_t* keys, uint32_t* indices, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  keys[i] = key_of(p[i]);
  indices[i] = static_cast<uint32_t>(i);
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + 255) / 256); }

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size()) / 2, v.end());
  return v[v.size() / 2];
}

// Whether element i has a key from a bound on.
struct Reaches {
  const uint32_t* keys;
  uint32_t bound;
  __device__ bool operator()(uint32_t i) const { return keys[i] >= bound; }
};

// Other ways to what exact selection does, over the keys of the p that it has made.
class OtherWays {
 public:
  explicit OtherWays(const scalecom_tensor& t)
      : t_(t),
        kept_(static_cast<uint32_t>(t.chunk_keep)),
        ours_(on_host(static_cast<const uint32_t*>(t.offsets), kept_)),
        keys_(allocate<uint32_t>(t.elements)),
        sorted_keys_(allocate<uint32_t>(t.elements)),
        indices_(allocate<uint32_t>(t.elements)),
        found_(allocate<uint32_t>(t.elements)),
        size_(allocate<int64_t>(1)),
        state_(allocate<radix_select::State>(1)) {
    keys_of<<<blocks(t_.elements), 256>>>(t_.compensated, keys_, indices_, t_.elements);
    const auto reserve = [&](const auto& function) {
      size_t bytes = 0;
      must(function(nullptr, bytes));
      bytes_ = std::max(bytes_, bytes);
    };
    reserve([&](void* none, size_t& bytes) { return sort(none, bytes); });
    reserve([&](void* none, size_t& bytes) { return above_bound(none, bytes); });
#if defined(SCALECOM_BENCH_TOPK)
    reserve([&](void* none, size_t& bytes) { return top(none, bytes); });
#endif
    scratch_ = allocate<char>(static_cast<int64_t>(bytes_));
  }

  // Whether a stable sort of all keeps the same; where it ends is the bound.
  bool sort_agrees() {
    must(sort(scratch_, bytes_));
    bound_ = on_host(sorted_keys_, kept_).back();
    return chosen() == ours_;
  }

  // Radix passes over all; keys are the bits of |p|.
  void by_radix() {
    must(radix_select::run(reinterpret_cast<const float*>(keys_), t_.elements, kept_, state_,
                           found_));
  }
  bool by_radix_agrees() {
    by_radix();
    return on_host(&state_->key, 1)[0] == bound_ && differs_in_ties_alone();
  }

#if defined(SCALECOM_BENCH_TOPK)
  // The same, but a pass reads what the one before has left where that is little.
  void top() { must(top(scratch_, bytes_)); }
  bool top_agrees() {
    top();
    return differs_in_ties_alone();
  }
#endif

  // The least that there is to do: one pass that copies the indices of keys from a known bound on.
  void above_bound() { must(above_bound(scratch_, bytes_)); }
  bool above_bound_agrees() {
    above_bound();
    const size_t size = static_cast<size_t>(on_host(size_, 1)[0]);
    const std::vector<uint32_t> reached = on_host(found_, size);
    // Of those equal to the bound the last may be too many.
    return std::includes(reached.begin(), reached.end(), ours_.begin(), ours_.end());
  }

 private:
  template <typename T>
  static std::vector<T> on_host(const T* from, size_t count) {
    std::vector<T> to(count);
    must(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }

  std::vector<uint32_t> chosen() const {
    std::vector<uint32_t> indices = on_host(found_, kept_);
    std::sort(indices.begin(), indices.end());
    return indices;
  }

  // Whether what was found is exact selection's, but for which of those equal to the bound it is.
  bool differs_in_ties_alone() const {
    const std::vector<uint32_t> theirs = chosen();
    std::vector<uint32_t> only;
    std::set_symmetric_difference(theirs.begin(), theirs.end(), ours_.begin(), ours_.end(),
                                  std::back_inserter(only));
    const bool once = std::adjacent_find(theirs.begin(), theirs.end()) == theirs.end();
    return once && std::all_of(only.begin(), only.end(), [&](uint32_t i) {
             return i < t_.elements && on_host(keys_ + i, 1)[0] == bound_;
           });
  }

  cudaError_t sort(void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairsDescending(scratch, bytes, keys_, sorted_keys_, indices_,
                                                     found_, t_.elements, 0, 31);
  }
  cudaError_t above_bound(void* scratch, size_t& bytes) {
    return cub::DeviceSelect::If(scratch, bytes, thrust::counting_iterator<uint32_t>(0), found_,
                                 size_, t_.elements, Reaches{keys_, bound_});
  }
#if defined(SCALECOM_BENCH_TOPK)
  cudaError_t top(void* scratch, size_t& bytes) {
    namespace execution = cuda::execution;
    return cub::DeviceTopK::MaxPairs(scratch, bytes, keys_, sorted_keys_,
                                     thrust::counting_iterator<uint32_t>(0), found_, t_.elements,
                                     t_.chunk_keep,
                                     execution::require(execution::determinism::not_guaranteed,
                                                        execution::output_ordering::unsorted));
  }
#endif

  scalecom_tensor t_;
  uint32_t kept_;
  std::vector<uint32_t> ours_;
  uint32_t* keys_;
  uint32_t* sorted_keys_;
  uint32_t* indices_;
  uint32_t* found_;
  int64_t* size_;
  radix_select::State* state_;
  size_t bytes_ = 0;
  void* scratch_ = nullptr;
  uint32_t bound_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = argc > 1 ? atoll(argv[1]) : 100000000;
  const int rounds = argc > 2 ? atoi(argv[2]) : 30;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    printf("skipped: no CUDA device\n");
    return 77;
  }
  float* gradient = allocate<float>(n);
  float* residual = allocate<float>(n);
  float* output = allocate<float>(n);
  float* compensated = allocate<float>(n);
  uint16_t* half = allocate<uint16_t>(n);
  uint32_t* flag = allocate<uint32_t>(1);
  must(cudaMemset(flag, 0, 4));
  uint8_t* finite = allocate<uint8_t>(1);
  must(cudaMemset(finite, 1, 1));
  fill<<<blocks(n), 256>>>(gradient, n, 1);
  fill<<<blocks(n), 256>>>(residual, n, 2);
  narrow<<<blocks(n), 256>>>(gradient, half, n);

  const auto tensor = [&](int64_t chunk_size, int64_t keep, int64_t offset_bytes) {
    scalecom_tensor t = {};
    t.elements = n;
    t.chunk_size = chunk_size;
    t.chunk_keep = keep;
    t.tail_keep = 1;
    t.offset_bytes = offset_bytes;
    t.gradient = gradient;
    t.residual = residual;
    t.output = output;
    t.compensated = compensated;
    const int64_t kept = scalecom_tensor_kept(&t);
    t.offsets = allocate<char>(kept * offset_bytes);
    t.values = allocate<float>(kept);
    t.reduced = allocate<float>(kept);
    must(cudaMemset(t.values, 0, static_cast<size_t>(kept) * 4));
    must(cudaMemset(const_cast<void*>(t.reduced), 0, static_cast<size_t>(kept) * 4));
    return t;
  };
  scalecom_tensor one = tensor(100, 1, 1);
  scalecom_tensor two = tensor(2, 1, 1);
  scalecom_tensor eight = tensor(8, 1, 1);
  scalecom_tensor odd = tensor(25, 1, 1);
  scalecom_tensor pair = tensor(16, 2, 1);
  scalecom_tensor tenth = tensor(100, 10, 1);
  scalecom_tensor wide = tensor(10000, 1, 2);
  scalecom_tensor ten = tensor(1000, 10, 2);
  scalecom_tensor top = tensor(n, n / 100, 4);
  scalecom_tensor narrow_one = one;
  narrow_one.gradient = half;
  narrow_one.output = half;
  // The same elements as a model's worth of tensors, in one launch.
  std::vector<scalecom_tensor> many;
  for (int64_t i = 0, start = 0; i < 250; ++i) {
    scalecom_tensor t = one;
    t.elements = (n / 250 / 100 - 3 + i % 7) * 100;
    t.gradient = gradient + start;
    t.residual = residual + start;
    t.output = output + start;
    t.compensated = compensated + start;
    t.offsets = static_cast<char*>(one.offsets) + start / 100;
    t.values = static_cast<float*>(one.values) + start / 100;
    t.reduced = static_cast<const float*>(one.reduced) + start / 100;
    start += t.elements;
    if (start <= n) many.push_back(t);
  }
  const int64_t workspace_bytes = scalecom_offsets_workspace_cuda(&top, 1, SCALECOM_EXACT);
  void* workspace = allocate<char>(workspace_bytes);

  const double e = static_cast<double>(n);
  const auto select = [&](const scalecom_tensor* t, int64_t count = 1,
                          int32_t type = SCALECOM_FLOAT32) {
    must(scalecom_offsets_select_cuda(t, count, SCALECOM_CHUNK, type, flag, nullptr, 0, nullptr));
  };
  const auto compensate = [&](const scalecom_tensor* t, int32_t type = SCALECOM_FLOAT32) {
    must(scalecom_gradients_compensate_cuda(t, 1, type, flag, nullptr));
  };
  const auto scatter = [&](const scalecom_tensor* t, int64_t count = 1,
                           int32_t type = SCALECOM_FLOAT32) {
    must(scalecom_outputs_scatter_cuda(t, count, type, SCALECOM_FLOAT32, nullptr));
  };
  must(scalecom_offsets_select_cuda(&top, 1, SCALECOM_EXACT, SCALECOM_FLOAT32, flag, workspace,
                                    workspace_bytes, nullptr));
  OtherWays other(top);
  must_agree("CUB's stable sort", other.sort_agrees());
  must_agree("a radix select", other.by_radix_agrees());
  must_agree("CUB's indices above a bound", other.above_bound_agrees());
#if defined(SCALECOM_BENCH_TOPK)
  must_agree("CUB's top-k", other.top_agrees());
#endif
  std::vector<Work> list = {
      {"copy",
       8 * e,
       [&] {
         must(cudaMemcpyAsync(output, gradient, static_cast<size_t>(n) * 4,
                              cudaMemcpyDeviceToDevice));
       },
       {}},
      {"compensate", 12 * e, [&] { compensate(&one); }, {}},
      {"compensate, bfloat16", 10 * e, [&] { compensate(&narrow_one, SCALECOM_BFLOAT16); }, {}},
      {"select, 1 of 100", 12 * e, [&] { select(&one); }, {}},
      {"select, 1 of 100, 250 tensors",
       12 * e,
       [&] { select(many.data(), static_cast<int64_t>(many.size())); },
       {}},
      {"select, 1 of 2", 12 * e, [&] { select(&two); }, {}},
      {"select, 1 of 8", 12 * e, [&] { select(&eight); }, {}},
      {"select, 1 of 25", 12 * e, [&] { select(&odd); }, {}},
      {"select, 2 of 16", 12 * e, [&] { select(&pair); }, {}},
      {"select, 10 of 100", 12 * e, [&] { select(&tenth); }, {}},
      {"select, 1 of 10000", 12 * e, [&] { select(&wide); }, {}},
      {"select, 1 of 100, bfloat16",
       10 * e,
       [&] { select(&narrow_one, 1, SCALECOM_BFLOAT16); },
       {}},
      {"select, 10 of 1000", 12 * e, [&] { select(&ten); }, {}},
      {"select, exact 1 %",
       12 * e,
       [&] {
         must(scalecom_offsets_select_cuda(&top, 1, SCALECOM_EXACT, SCALECOM_FLOAT32, flag,
                                           workspace, workspace_bytes, nullptr));
       },
       {}},
      {"gather",
       0,
       [&] { must(scalecom_values_gather_cuda(&one, 1, SCALECOM_FLOAT32, INFINITY, nullptr)); },
       {}},
      {"filter, beta below 1",
       12 * e,
       [&] { must(scalecom_residuals_filter_cuda(&one, 1, 0.5f, finite, nullptr)); },
       {}},
      {"scatter", 4 * e, [&] { scatter(&one); }, {}},
      {"scatter, 250 tensors",
       4 * e,
       [&] { scatter(many.data(), static_cast<int64_t>(many.size())); },
       {}},
      {"scatter, bfloat16", 2 * e, [&] { scatter(&narrow_one, 1, SCALECOM_BFLOAT16); }, {}},
      {"scatter, 10 of 1000", 4 * e, [&] { scatter(&ten); }, {}},
      {"scatter, exact 1 %", 4 * e, [&] { scatter(&top); }, {}},
      {"radix select, 1 % of p", 4 * e, [&] { other.by_radix(); }, {}},
#if defined(SCALECOM_BENCH_TOPK)
      {"CUB's top-k, 1 % of p", 4 * e, [&] { other.top(); }, {}},
#endif
      {"CUB's selection of p, the bound known", 4 * e, [&] { other.above_bound(); }, {}},
  };
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start));
  must(cudaEventCreate(&stop));
  for (int round = -2; round < rounds; ++round) {
    for (Work& w : list) {
      must(cudaEventRecord(start));
      w.run();
      must(cudaEventRecord(stop));
      must(cudaEventSynchronize(stop));
      float ms = 0;
      must(cudaEventElapsedTime(&ms, start, stop));
      if (round >= 0) w.seconds.push_back(ms * 1e-3);  // the first rounds warm up
    }
  }

  printf("\n%lld elements, %s, %d rounds\n\n", static_cast<long long>(n), properties.name, rounds);
  printf("| function | MB to move | best ms | median ms | median GB/s | %% of copy |\n");
  printf("|---|---|---|---|---|---|\n");
  for (const Work& w : list) {
    std::vector<double> share;
    for (size_t i = 0; i < w.seconds.size(); ++i) {
      share.push_back(100 * (w.bytes / w.seconds[i]) / (list[0].bytes / list[0].seconds[i]));
    }
    const double middle = median(w.seconds);
    printf("| %s | %.0f | %.3f | %.3f | ", w.name.c_str(), w.bytes / 1e6,
           *std::min_element(w.seconds.begin(), w.seconds.end()) * 1e3, middle * 1e3);
    if (w.bytes > 0) {
      printf("%.0f | %.0f |\n", w.bytes / middle / 1e9, median(share));
    } else {
      printf("- | - |\n");
    }
  }
  printf("\nexact selection equals CUB's stable sort, and what the others find\n");
  return 0;
}
