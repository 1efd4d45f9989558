// Times the CUDA functions against the device's own copy bandwidth, in one run, and checks
// exact selection against CUB's sort.
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

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <functional>
#include <string>
#include <vector>

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
  fprintf(stderr, "%s\n", scalecom_status_text(status));
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

__global__ void keys_of(const float* m, const float* g, uint32_t* keys, uint32_t* indices,
                        int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  keys[i] = __float_as_uint(__fadd_rn(m[i], g[i])) & 0x7fffffffu;
  indices[i] = static_cast<uint32_t>(i);
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + 255) / 256); }

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size()) / 2, v.end());
  return v[v.size() / 2];
}

// Milliseconds of CUB's way, after checking that it selects the same indices.
double compare_with_cub(const scalecom_tensor& t) {
  const int64_t n = t.elements;
  const int64_t k = t.chunk_keep;
  uint32_t* keys = allocate<uint32_t>(n);
  uint32_t* sorted_keys = allocate<uint32_t>(n);
  uint32_t* indices = allocate<uint32_t>(n);
  uint32_t* sorted = allocate<uint32_t>(n);
  keys_of<<<blocks(n), 256>>>(t.residual, static_cast<const float*>(t.gradient), keys, indices, n);
  size_t bytes = 0;
  must(cub::DeviceRadixSort::SortPairsDescending(nullptr, bytes, keys, sorted_keys, indices, sorted,
                                                 n, 0, 31));
  void* scratch = allocate<char>(static_cast<int64_t>(bytes));
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start));
  must(cudaEventCreate(&stop));
  float ms = 0;
  for (int round = 0; round < 2; ++round) {  // the first warms up
    must(cudaEventRecord(start));
    must(cub::DeviceRadixSort::SortPairsDescending(scratch, bytes, keys, sorted_keys, indices,
                                                   sorted, n, 0, 31));
    must(cudaEventRecord(stop));
    must(cudaEventSynchronize(stop));
    must(cudaEventElapsedTime(&ms, start, stop));
  }
  std::vector<uint32_t> want(static_cast<size_t>(k));
  std::vector<uint32_t> got(static_cast<size_t>(k));
  const size_t size = static_cast<size_t>(k) * 4;
  must(cudaMemcpy(want.data(), sorted, size, cudaMemcpyDeviceToHost));
  must(cudaMemcpy(got.data(), t.offsets, size, cudaMemcpyDeviceToHost));
  std::sort(want.begin(), want.end());
  if (want != got) {
    fprintf(stderr, "FAILED: exact selection differs from CUB's stable sort\n");
    exit(1);
  }
  for (void* p : {static_cast<void*>(keys), static_cast<void*>(sorted_keys),
                  static_cast<void*>(indices), static_cast<void*>(sorted), scratch}) {
    must(cudaFree(p));
  }
  return ms;
}

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
  scalecom_tensor odd = tensor(25, 1, 1);
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
      {"select, 1 of 25", 12 * e, [&] { select(&odd); }, {}},
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
       [&] { must(scalecom_residuals_filter_cuda(&one, 1, 0.5f, nullptr)); },
       {}},
      {"scatter", 4 * e, [&] { scatter(&one); }, {}},
      {"scatter, 250 tensors",
       4 * e,
       [&] { scatter(many.data(), static_cast<int64_t>(many.size())); },
       {}},
      {"scatter, bfloat16", 2 * e, [&] { scatter(&narrow_one, 1, SCALECOM_BFLOAT16); }, {}},
      {"scatter, 10 of 1000", 4 * e, [&] { scatter(&ten); }, {}},
      {"scatter, exact 1 %", 4 * e, [&] { scatter(&top); }, {}},
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
  // The rounds left the residual of `apply`; select once more, for CUB to see the same.
  must(scalecom_offsets_select_cuda(&top, 1, SCALECOM_EXACT, SCALECOM_FLOAT32, flag, workspace,
                                    workspace_bytes, nullptr));
  printf("\nexact selection equals CUB's stable sort, which takes %.3f ms\n",
         compare_with_cub(top));
  return 0;
}
