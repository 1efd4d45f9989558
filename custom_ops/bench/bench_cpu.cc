// Times the CPU functions against the machine's own copy bandwidth, in one run.
//
//   bench_cpu [elements] [rounds] [threads...]
//
// Every function must move so many bytes an element; its GB/s is that over its time. A round
// goes through the list: a copy and then every function, all with the same number of
// threads, over arrays far larger than the caches. The arrays are taken in five slices, each
// timed on its own: a best time is the sum of each slice's best round, which other programs
// on the machine disturb less than the best of whole passes. Copy is the faster of memcpy
// and a streaming copy, counting bytes read and bytes written.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "scalecom/scalecom.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace {

constexpr int kSlices = 5;

struct Work {
  std::string name;
  double bytes;  // that must move, in all slices
  std::function<void(int slice)> run;
  std::vector<double> seconds[kSlices];

  double best() const {
    double sum = 0;
    for (const auto& slice : seconds) sum += *std::min_element(slice.begin(), slice.end());
    return sum;
  }
  double median() const {
    std::vector<double> rounds(seconds[0].size());
    for (const auto& slice : seconds) {
      for (size_t i = 0; i < slice.size(); ++i) rounds[i] += slice[i];
    }
    std::nth_element(rounds.begin(), rounds.begin() + static_cast<int64_t>(rounds.size() / 2),
                     rounds.end());
    return rounds[rounds.size() / 2];
  }
};

// Page-aligned and touched, as a framework's buffers are by their second step.
template <typename T>
T* allocate(int64_t n) {
  const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + 4095) / 4096 * 4096;
  void* memory = aligned_alloc(4096, std::max<size_t>(bytes, 4096));
  if (memory == nullptr) abort();
  memset(memory, 1, bytes);
  return static_cast<T*>(memory);
}

void stream_copy(char* to, const char* from, int64_t bytes) {
#if defined(__x86_64__)
  for (int64_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
#else
  memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

void parallel(const scalecom_executor* executor, int64_t tasks,
              const std::function<void(int64_t)>& function) {
  const auto task = [](void* context, int64_t i) {
    (*static_cast<const std::function<void(int64_t)>*>(context))(i);
  };
  void* context = const_cast<std::function<void(int64_t)>*>(&function);
  scalecom_threads_run(executor->state, tasks, task, context);
}

void must(int32_t status) {
  if (status == SCALECOM_OK) return;
  fprintf(stderr, "%s\n", scalecom_status_text(status));
  exit(1);
}

void bench(int64_t n, int rounds, int32_t threads) {
  const scalecom_executor pool = {scalecom_threads_run, &threads};
  const uint8_t finite = 1;
  float* gradient = allocate<float>(n);
  float* residual = allocate<float>(n);
  float* output = allocate<float>(n);
  uint16_t* half = allocate<uint16_t>(n);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.0f, 0.01f);
  for (int64_t i = 0; i < n; ++i) {
    gradient[i] = normal(rng);
    residual[i] = normal(rng);
    half[i] = static_cast<uint16_t>(rng() & 0x3fff);  // bfloat16 below 2
  }

  // A tensor for each slice.
  const int64_t m = n / kSlices;
  std::vector<void*> owned;
  const auto tensors = [&](int64_t chunk_size, int64_t keep, int64_t offset_bytes) {
    std::vector<scalecom_tensor> list;
    for (int64_t start = 0; start < m * kSlices; start += m) {
      scalecom_tensor t = {};
      t.elements = m;
      t.chunk_size = chunk_size;
      t.chunk_keep = keep;
      t.tail_keep = 1;
      t.offset_bytes = offset_bytes;
      t.gradient = gradient + start;
      t.residual = residual + start;
      t.output = output + start;
      t.compensated = gradient + start;  // in the gradient's place, as in training
      const int64_t kept = scalecom_tensor_kept(&t);
      t.offsets = allocate<char>(kept * offset_bytes);
      t.values = allocate<float>(kept);
      t.reduced = allocate<float>(kept);
      owned.insert(owned.end(), {t.offsets, t.values, const_cast<void*>(t.reduced)});
      list.push_back(t);
    }
    return list;
  };
  const std::vector<scalecom_tensor> one = tensors(100, 1, 1);
  const std::vector<scalecom_tensor> ten = tensors(1000, 10, 2);
  const std::vector<scalecom_tensor> top = tensors(m, m / 100, 4);
  std::vector<scalecom_tensor> narrow = one;
  std::vector<scalecom_tensor> beside = one;
  for (int i = 0; i < kSlices; ++i) {
    narrow[static_cast<size_t>(i)].gradient = half + i * m;
    narrow[static_cast<size_t>(i)].compensated = output + i * m;
    beside[static_cast<size_t>(i)].compensated = output + i * m;
  }
  std::vector<scalecom_slices> slices;
  for (const scalecom_tensor& t : one) {
    const int64_t kept = scalecom_tensor_kept(&t);
    int64_t* indices = allocate<int64_t>(kept);
    for (int64_t j = 0; j < kept; ++j) indices[j] = 100 * j + static_cast<int64_t>(rng() % 100);
    indices[kept - 1] = t.elements - 1;
    owned.push_back(indices);
    slices.push_back({t.elements, kept, static_cast<float*>(t.output), indices,
                      static_cast<const float*>(t.reduced)});
  }
  const float learning_rate = 0.0f;  // the variables stay small, round after round
  const int64_t workspace_bytes =
      scalecom_offsets_workspace_cpu(top.data(), kSlices, SCALECOM_EXACT);
  void* workspace = allocate<char>(workspace_bytes);

  uint32_t flag = 0;
  const auto at = [](int i) { return static_cast<size_t>(i); };
  const double e = static_cast<double>(m * kSlices);
  const int64_t piece = 1 << 19;
  const auto copy = [&](int slice, void (*function)(char*, const char*, int64_t)) {
    const int64_t bytes = m * 4;
    parallel(&pool, (bytes + piece - 1) / piece, [&](int64_t i) {
      function(reinterpret_cast<char*>(output + slice * m) + i * piece,
               reinterpret_cast<const char*>(gradient + slice * m) + i * piece,
               std::min(piece, bytes - i * piece) & ~int64_t{15});
    });
  };
  std::vector<Work> list = {
      {"copy (memcpy)",
       8 * e,
       [&](int i) {
         copy(i, [](char* to, const char* from, int64_t bytes) {
           memcpy(to, from, static_cast<size_t>(bytes));
         });
       },
       {}},
      {"copy (streaming)", 8 * e, [&](int i) { copy(i, stream_copy); }, {}},
      // What a pass that only reads can reach: one core waits for more of memory's latency
      // than a copy, half of whose traffic is stores.
      {"read alone",
       4 * e,
       [&](int i) {
         const int64_t bytes = m * 4;
         parallel(&pool, (bytes + piece - 1) / piece, [&](int64_t p) {
           const int64_t end = std::min(bytes, (p + 1) * piece) / 4;
           uint32_t all = 0;
           for (int64_t j = p * piece / 4; j < end; ++j) {
             all |= reinterpret_cast<const uint32_t*>(gradient + i * m)[j];
           }
           if (all == 0) abort();  // keeps the loop
         });
       },
       {}},
      {"compensate",
       12 * e,
       [&](int i) {
         must(scalecom_gradients_compensate_cpu(&one[at(i)], 1, SCALECOM_FLOAT32, &flag, &pool));
       },
       {}},
      {"select, 1 of 100",
       12 * e,
       [&](int i) {
         must(scalecom_offsets_select_cpu(&one[at(i)], 1, SCALECOM_CHUNK, SCALECOM_FLOAT32, &flag,
                                          nullptr, 0, &pool));
       },
       {}},
      {"select, 10 of 1000",
       12 * e,
       [&](int i) {
         must(scalecom_offsets_select_cpu(&ten[at(i)], 1, SCALECOM_CHUNK, SCALECOM_FLOAT32, &flag,
                                          nullptr, 0, &pool));
       },
       {}},
      {"select, exact 1 %",
       12 * e,
       [&](int i) {
         must(scalecom_offsets_select_cpu(&top[at(i)], 1, SCALECOM_EXACT, SCALECOM_FLOAT32, &flag,
                                          workspace, workspace_bytes, &pool));
       },
       {}},
      {"compensate, p elsewhere",
       12 * e,
       [&](int i) {
         must(scalecom_gradients_compensate_cpu(&beside[at(i)], 1, SCALECOM_FLOAT32, &flag, &pool));
       },
       {}},
      {"select, 1 of 100, bfloat16",
       10 * e,
       [&](int i) {
         must(scalecom_offsets_select_cpu(&narrow[at(i)], 1, SCALECOM_CHUNK, SCALECOM_BFLOAT16,
                                          &flag, nullptr, 0, &pool));
       },
       {}},
      {"gather",
       0,
       [&](int i) {
         must(scalecom_values_gather_cpu(&one[at(i)], 1, SCALECOM_FLOAT32, INFINITY, &pool));
       },
       {}},
      {"filter, beta below 1",
       12 * e,
       [&](int i) { must(scalecom_residuals_filter_cpu(&one[at(i)], 1, 0.5f, &finite, &pool)); },
       {}},
      {"scatter",
       4 * e,
       [&](int i) {
         must(scalecom_outputs_scatter_cpu(&one[at(i)], 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32,
                                           &pool));
       },
       {}},
      {"scatter, 10 of 1000",
       4 * e,
       [&](int i) {
         must(scalecom_outputs_scatter_cpu(&ten[at(i)], 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32,
                                           &pool));
       },
       {}},
      {"scatter, exact 1 %",
       4 * e,
       [&](int i) {
         must(scalecom_outputs_scatter_cpu(&top[at(i)], 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32,
                                           &pool));
       },
       {}},
      {"descend, 1 of 100",
       0,
       [&](int i) {
         must(scalecom_variables_descend_cpu(&slices[at(i)], 1, &learning_rate, &pool));
       },
       {}},
  };
  for (int round = -1; round < rounds; ++round) {
    for (Work& w : list) {
      for (int slice = 0; slice < kSlices; ++slice) {
        const auto start = std::chrono::steady_clock::now();
        w.run(slice);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (round >= 0) w.seconds[slice].push_back(took.count());  // the first round warms up
      }
    }
  }

  printf("\n%lld elements, %d thread%s, %s, %d rounds\n\n", static_cast<long long>(n), threads,
         threads == 1 ? "" : "s", scalecom_cpu_isa(), rounds);
  printf("| function | MB to move | best ms | median ms | GB/s | %% of copy |\n");
  printf("|---|---|---|---|---|---|\n");
  const double copied = list[0].bytes / std::min(list[0].best(), list[1].best());
  for (const Work& w : list) {
    printf("| %s | %.0f | %.2f | %.2f | ", w.name.c_str(), w.bytes / 1e6, w.best() * 1e3,
           w.median() * 1e3);
    if (w.bytes > 0) {
      const double rate = w.bytes / w.best();
      printf("%.1f | %.0f |\n", rate / 1e9, 100 * rate / copied);
    } else {
      printf("- | - |\n");
    }
  }
  if (flag != 0) exit(1);
  owned.insert(owned.end(), {gradient, residual, output, half, workspace});
  for (void* p : owned) free(p);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = argc > 1 ? atoll(argv[1]) : 25000000;
  const int rounds = argc > 2 ? atoi(argv[2]) : 15;
  if (argc > 3) {
    for (int i = 3; i < argc; ++i) bench(n, rounds, atoi(argv[i]));
  } else {
    for (int threads : {1, 2}) bench(n, rounds, threads);
  }
  return 0;
}
