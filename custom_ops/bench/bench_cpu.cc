// Times the CPU functions against the machine's own copy bandwidth, in one run.
//
//   bench_cpu [elements] [rounds] [threads...]
//
// Every function must move so many bytes an element; its GB/s is that over its time. A round
// times a copy and then every function, all with the same number of threads, and % of copy
// compares within the round, so that other load on the machine weighs on both. Copy is the
// faster of memcpy and a streaming copy, counting bytes read and bytes written.
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

struct Work {
  std::string name;
  double bytes;  // that must move
  std::function<void()> run;
  std::vector<double> seconds;
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

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size()) / 2, v.end());
  return v[v.size() / 2];
}

void bench(int64_t n, int rounds, int32_t threads) {
  const scalecom_executor pool = {scalecom_threads_run, &threads};
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
    const int64_t kept = scalecom_tensor_kept(&t);
    t.offsets = allocate<char>(kept * offset_bytes);
    t.values = allocate<float>(kept);
    t.reduced = allocate<float>(kept);
    return t;
  };
  scalecom_tensor one = tensor(100, 1, 1);
  scalecom_tensor ten = tensor(1000, 10, 2);
  scalecom_tensor top = tensor(n, n / 100, 4);
  scalecom_tensor narrow = one;
  narrow.gradient = half;
  const int64_t workspace_bytes = scalecom_indices_workspace_cpu(&top, 1);
  void* workspace = allocate<char>(workspace_bytes);

  uint32_t flag = 0;
  const double e = static_cast<double>(n);
  const int64_t piece = 1 << 20;
  const auto copy = [&](void (*function)(char*, const char*, int64_t)) {
    parallel(&pool, (n * 4 + piece - 1) / piece, [&](int64_t i) {
      function(reinterpret_cast<char*>(output) + i * piece,
               reinterpret_cast<const char*>(gradient) + i * piece,
               std::min(piece, n * 4 - i * piece) & ~int64_t{15});
    });
  };
  std::vector<Work> list = {
      {"copy (memcpy)", 8 * e,
       [&] {
         copy([](char* to, const char* from, int64_t bytes) {
           memcpy(to, from, static_cast<size_t>(bytes));
         });
       },
       {}},
      {"copy (streaming)", 8 * e, [&] { copy(stream_copy); }, {}},
      {"select, 1 of 100", 8 * e,
       [&] { must(scalecom_offsets_select_cpu(&one, 1, SCALECOM_FLOAT32, &flag, &pool)); }, {}},
      {"select, 10 of 1000", 8 * e,
       [&] { must(scalecom_offsets_select_cpu(&ten, 1, SCALECOM_FLOAT32, &flag, &pool)); }, {}},
      {"select, 1 of 100, bfloat16", 6 * e,
       [&] { must(scalecom_offsets_select_cpu(&narrow, 1, SCALECOM_BFLOAT16, &flag, &pool)); },
       {}},
      {"select, exact 1 %", 8 * e,
       [&] {
         must(scalecom_indices_select_cpu(&top, 1, SCALECOM_FLOAT32, &flag, workspace,
                                          workspace_bytes, &pool));
       },
       {}},
      {"finite check", 4 * e,
       [&] { must(scalecom_gradients_check_cpu(&one, 1, SCALECOM_FLOAT32, &flag, &pool)); }, {}},
      {"gather", 0,
       [&] { must(scalecom_values_gather_cpu(&one, 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32, &pool)); },
       {}},
      {"filter", 12 * e,
       [&] {
         must(scalecom_residuals_filter_cpu(&one, 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32, 0.5f,
                                            &pool));
       },
       {}},
      {"scatter", 4 * e,
       [&] {
         must(scalecom_outputs_scatter_cpu(&one, 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32, &pool));
       },
       {}},
      {"apply (filter + scatter)", 16 * e,
       [&] {
         must(scalecom_updates_apply_cpu(&one, 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32, 0.5f, &pool));
       },
       {}},
      {"apply, 10 of 1000", 16 * e,
       [&] {
         must(scalecom_updates_apply_cpu(&ten, 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32, 0.5f, &pool));
       },
       {}},
      {"apply, exact 1 %", 16 * e,
       [&] {
         must(scalecom_updates_apply_cpu(&top, 1, SCALECOM_FLOAT32, SCALECOM_FLOAT32, 0.5f, &pool));
       },
       {}},
  };
  for (int round = -1; round < rounds; ++round) {
    for (Work& w : list) {
      const auto start = std::chrono::steady_clock::now();
      w.run();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round >= 0) w.seconds.push_back(took.count());  // the first round warms up
    }
  }

  printf("\n%lld elements, %d thread%s, %s, %d rounds\n\n", static_cast<long long>(n), threads,
         threads == 1 ? "" : "s", scalecom_cpu_isa(), rounds);
  printf("| function | MB to move | best ms | median ms | best GB/s | %% of copy |\n");
  printf("|---|---|---|---|---|---|\n");
  for (const Work& w : list) {
    std::vector<double> share;
    for (size_t i = 0; i < w.seconds.size(); ++i) {
      const double fastest = std::min(list[0].seconds[i], list[1].seconds[i]);
      share.push_back(100 * (w.bytes / w.seconds[i]) / (list[0].bytes / fastest));
    }
    const double best = *std::min_element(w.seconds.begin(), w.seconds.end());
    printf("| %s | %.0f | %.2f | %.2f | ", w.name.c_str(), w.bytes / 1e6, best * 1e3,
           median(w.seconds) * 1e3);
    if (w.bytes > 0) {
      printf("%.1f | %.0f |\n", w.bytes / best / 1e9, median(share));
    } else {
      printf("- | - |\n");
    }
  }
  if (flag != 0) exit(1);
  for (void* p : {static_cast<void*>(gradient), static_cast<void*>(residual),
                  static_cast<void*>(output), static_cast<void*>(half), workspace}) {
    free(p);
  }
  for (scalecom_tensor* t : {&one, &ten, &top}) {
    free(t->offsets);
    free(t->values);
    free(const_cast<void*>(t->reduced));
  }
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
