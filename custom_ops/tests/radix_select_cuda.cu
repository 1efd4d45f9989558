// The radix select that bench_cuda compares with, against a sort.
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <random>
#include <vector>

#include "bench/radix_select.cuh"

namespace {

void require(bool condition, const char* what, int64_t n, int64_t k, int kind) {
  if (condition) return;
  fprintf(stderr, "FAILED: %s, %lld of %lld, kind %d\n", what, static_cast<long long>(k),
          static_cast<long long>(n), kind);
  exit(1);
}

float draw(int kind, std::mt19937& random) {
  const float normal = std::normal_distribution<float>()(random);
  switch (kind) {
    case 0: return normal;
    case 1: return roundf(2 * normal);  // many ties
    case 2: return 0;
    default: return ldexpf(normal, static_cast<int>(random() % 250) - 125);  // every first digit
  }
}

void check(int64_t n, int64_t k, int kind, std::mt19937& random) {
  const size_t size = static_cast<size_t>(n);
  std::vector<float> values(size);
  for (float& v : values) v = draw(kind, random);
  float* p = nullptr;
  uint32_t* chosen = nullptr;
  radix_select::State* state = nullptr;
  require(cudaMalloc(&p, size * 4) == cudaSuccess &&
              cudaMalloc(&chosen, static_cast<size_t>(k + 1) * 4) == cudaSuccess &&
              cudaMalloc(&state, sizeof *state) == cudaSuccess,
          "memory", n, k, kind);
  cudaMemset(chosen, 0xff, static_cast<size_t>(k + 1) * 4);
  cudaMemcpy(p, values.data(), size * 4, cudaMemcpyHostToDevice);
  require(radix_select::run(p, n, static_cast<uint32_t>(k), state, chosen) == cudaSuccess, "launch",
          n, k, kind);
  std::vector<uint32_t> indices(static_cast<size_t>(k + 1));
  require(
      cudaMemcpy(indices.data(), chosen, indices.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess,
      "run", n, k, kind);
  cudaFree(p);
  cudaFree(chosen);
  cudaFree(state);

  require(indices.back() == 0xffffffff, "more than k", n, k, kind);
  indices.pop_back();
  std::sort(indices.begin(), indices.end());
  require(std::adjacent_find(indices.begin(), indices.end()) == indices.end(), "an index twice", n,
          k, kind);
  require(indices.back() < n, "an index of none", n, k, kind);
  std::vector<float> got;
  for (uint32_t i : indices) got.push_back(fabsf(values[i]));
  std::sort(got.rbegin(), got.rend());
  for (float& v : values) v = fabsf(v);
  std::sort(values.rbegin(), values.rend());
  values.resize(got.size());
  require(got == values, "other values", n, k, kind);
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("skipped: no CUDA device\n");
    return 77;
  }
  std::mt19937 random{1};
  int64_t checked = 0;
  for (int64_t n : {1, 2, 3, 5, 255, 4097, 8192, 8195, 30001}) {
    for (int64_t k : {int64_t{1}, n / 100, n / 2, n}) {
      if (k < 1) continue;
      for (int kind = 0; kind < 4; ++kind, ++checked) check(n, k, kind, random);
    }
  }
  printf("%lld radix selects equal to a sort\n", static_cast<long long>(checked));
  return 0;
}
