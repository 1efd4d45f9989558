// Runs the CUDA kernels on the CPU, to test their logic where there is no GPU: thread by
// thread, each a fiber that gives way where threads of a warp or block meet. The fibers of a
// block take turns in a random order, so that a missing barrier shows, and a barrier that not
// all of them reach is reported. It says nothing of speed, nor of the memory model.
//
// This directory stands in for the CUDA headers of the same names; see the Makefile.
#ifndef SCALECOM_TESTS_CUDA_ON_CPU_CUDA_RUNTIME_H_
#define SCALECOM_TESTS_CUDA_ON_CPU_CUDA_RUNTIME_H_

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "core/cpu/float_mode.h"

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__ &

// --- Errors ------------------------------------------------------------------------------

using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorLaunchOutOfResources = 701;

// --- Threads -----------------------------------------------------------------------------

#if defined(__GNUC__) && !defined(__clang__)
// Of variables that live across getcontext, which the scheduler never returns to.
#pragma GCC diagnostic ignored "-Wclobbered"
#endif

namespace emulator {

constexpr int kWarpLanes = 32;

struct Warp {
  uint64_t given[kWarpLanes];
  uint64_t seen[kWarpLanes];
  int arrived = 0;
  int generation = 0;
};

// A context starts a fiber; from then on jumps, which make no system call, go to and fro.
struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool started = false;
  std::vector<char> stack = std::vector<char>(64 << 10);
  bool done = true;
};

struct Block {
  jmp_buf scheduler;
  std::vector<Fiber> fibers = std::vector<Fiber>(1024);
  std::vector<Warp> warps = std::vector<Warp>(1024 / kWarpLanes);
  const std::function<void()>* body = nullptr;
  std::mt19937 random{1};
  unsigned index = 0;
  int current = 0;
  int living = 0;
  int waiting = 0;  // at __syncthreads
  int generation = 0;
  int64_t progress = 0;
};

inline Block& block() {
  static Block instance;
  return instance;
}

inline void give_way() {
  Block& b = block();
  if (_setjmp(b.fibers[static_cast<size_t>(b.current)].jump) == 0) _longjmp(b.scheduler, 1);
}

// Runs the fiber until it gives way. Not inlined: a jump may clobber its caller's variables.
__attribute__((noinline)) inline void resume(Block& b, Fiber& f) {
  if (_setjmp(b.scheduler) != 0) return;
  if (f.started) _longjmp(f.jump, 1);
  f.started = true;
  setcontext(&f.context);
}

inline void release_if_all_wait(Block& b) {
  if (b.living == 0 || b.waiting < b.living) return;
  b.waiting = 0;
  ++b.generation;
}

inline void fiber_main() {
  Block& b = block();
  (*b.body)();
  b.fibers[static_cast<size_t>(b.current)].done = true;
  --b.living;
  ++b.progress;
  release_if_all_wait(b);
  give_way();
}

inline void run_block(unsigned index, int threads, const std::function<void()>& body) {
  Block& b = block();
  b.index = index;
  b.body = &body;
  b.living = threads;
  b.waiting = 0;
  for (Warp& w : b.warps) w.arrived = 0;
  std::vector<int> order(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    order[static_cast<size_t>(i)] = i;
    Fiber& f = b.fibers[static_cast<size_t>(i)];
    f.done = false;
    f.started = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, fiber_main, 0);
  }
  while (b.living > 0) {
    const int64_t before = b.progress;
    std::shuffle(order.begin(), order.end(), b.random);
    for (int i : order) {
      if (b.fibers[static_cast<size_t>(i)].done) continue;
      b.current = i;
      resume(b, b.fibers[static_cast<size_t>(i)]);
    }
    if (b.progress == before) {
      fprintf(stderr, "FAILED: a barrier that not all threads reach\n");
      abort();
    }
  }
}

// What every lane of the warp gives, once all have.
inline const uint64_t* exchange(uint64_t value) {
  Block& b = block();
  const int lane = b.current % kWarpLanes;
  Warp& w = b.warps[static_cast<size_t>(b.current / kWarpLanes)];
  w.given[lane] = value;
  ++b.progress;
  const int generation = w.generation;
  if (++w.arrived == kWarpLanes) {
    w.arrived = 0;
    ++w.generation;
    memcpy(w.seen, w.given, sizeof w.seen);
  }
  while (w.generation == generation) give_way();
  return w.seen;
}

struct Index {
  unsigned x;
};

// A test's switch: no launch succeeds.
inline bool& launches_fail() {
  static bool fail = false;
  return fail;
}

inline cudaError_t& last_error() {
  static cudaError_t error = cudaSuccess;
  return error;
}

}  // namespace emulator

#define threadIdx (emulator::Index{static_cast<unsigned>(emulator::block().current)})
#define blockIdx (emulator::Index{emulator::block().index})

namespace scalecom {

template <typename... Parameters, typename... Arguments>
cudaError_t queue_kernel(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, void*,
                         const Arguments&... arguments) {
  if (emulator::launches_fail()) return emulator::last_error() = cudaErrorLaunchOutOfResources;
  const FloatMode as_compiled_for_the_gpu;
  const std::function<void()> body = [&] { kernel(arguments...); };
  for (unsigned i = 0; i < blocks; ++i) emulator::run_block(i, static_cast<int>(threads), body);
  return cudaSuccess;
}

}  // namespace scalecom

// --- Barriers, warps, atomics ------------------------------------------------------------

inline void __syncthreads() {
  emulator::Block& b = emulator::block();
  const int generation = b.generation;
  ++b.waiting;
  ++b.progress;
  emulator::release_if_all_wait(b);
  while (b.generation == generation) emulator::give_way();
}

inline void __syncwarp() { emulator::exchange(0); }

inline int emulated_lane() { return emulator::block().current % emulator::kWarpLanes; }

template <typename T>
T emulated_shuffle(T value, int lane) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  const uint64_t other = emulator::exchange(bits)[lane];
  memcpy(&value, &other, sizeof value);
  return value;
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulated_shuffle(value, lane);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulated_shuffle(value, emulated_lane() ^ mask);
}

template <typename T>
T __shfl_up_sync(unsigned, T value, int delta) {
  const int lane = emulated_lane();
  return emulated_shuffle(value, lane >= delta ? lane - delta : lane);
}

inline unsigned __ballot_sync(unsigned, bool predicate) {
  const uint64_t* seen = emulator::exchange(predicate);
  unsigned bits = 0;
  for (int i = 0; i < emulator::kWarpLanes; ++i) bits |= static_cast<unsigned>(seen[i]) << i;
  return bits;
}

template <typename T, typename Combine>
T emulated_reduce(T value, const Combine& combine) {
  const uint64_t* seen = emulator::exchange(static_cast<uint64_t>(static_cast<int64_t>(value)));
  T result = static_cast<T>(seen[0]);
  for (int i = 1; i < emulator::kWarpLanes; ++i) result = combine(result, static_cast<T>(seen[i]));
  return result;
}

template <typename T>
T __reduce_max_sync(unsigned, T value) {
  return emulated_reduce(value, [](T a, T b) { return a > b ? a : b; });
}

template <typename T>
T __reduce_min_sync(unsigned, T value) {
  return emulated_reduce(value, [](T a, T b) { return a < b ? a : b; });
}

template <typename T>
T __reduce_add_sync(unsigned, T value) {
  return emulated_reduce(value, [](T a, T b) { return static_cast<T>(a + b); });
}

template <typename T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

inline uint32_t atomicOr(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address = before | value;
  return before;
}

// --- Numbers and words -------------------------------------------------------------------

template <typename T>
T __ldcs(const T* address) {
  return *address;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __double2float_rn(double v) { return static_cast<float>(v); }
inline int __float_as_int(float v) {
  int bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
inline float __int_as_float(int bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(static_cast<int>(v)); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
using std::isfinite;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) ushort4 {
  uint16_t x, y, z, w;
};
inline int4 make_int4(int32_t x, int32_t y, int32_t z, int32_t w) { return {x, y, z, w}; }

template <typename T>
void __stwb(T* address, T value) {
  *address = value;
}

// --- The runtime -------------------------------------------------------------------------

enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchOutOfResources ? "too many resources requested for launch"
                                                : "out of memory";
}
inline cudaError_t cudaGetLastError() { return std::exchange(emulator::last_error(), cudaSuccess); }
struct cudaFuncAttributes {
  int binaryVersion;
  int ptxVersion;
};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* p) {
  free(p);
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  *p = static_cast<T*>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  return *p != nullptr ? cudaSuccess : 1;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  if (bytes > 0) memcpy(to, from, bytes);  // an empty array may be null
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  if (bytes > 0) memset(p, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(p, value, bytes);
}

#endif  // SCALECOM_TESTS_CUDA_ON_CPU_CUDA_RUNTIME_H_
