// Cuts a list of tensors into tasks of about equal size for the caller's executor.
#ifndef SCALECOM_CORE_CPU_PARALLEL_H_
#define SCALECOM_CORE_CPU_PARALLEL_H_

#include "core/layout.h"
#include "scalecom/scalecom.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace scalecom {

// Elements of one task: about a megabyte, enough to hide the cost of starting it.
constexpr int64_t kTaskElements = int64_t{1} << 17;

// Threads of a pool may flush subnormal numbers to zero; a result must not depend on which
// thread computed it.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_;
#endif
};

// Runs function(i) for i in [0, tasks).
template <typename Function>
void run_tasks(const scalecom_executor* executor, int64_t tasks, const Function& function) {
  const auto task = [](void* context, int64_t index) {
    const FloatMode mode;
    (*static_cast<const Function*>(context))(index);
  };
  void* context = const_cast<Function*>(&function);
  if (executor != nullptr && tasks > 1) {
    executor->run(executor->state, tasks, task, context);
    return;
  }
  for (int64_t i = 0; i < tasks; ++i) task(context, i);
}

inline int64_t total_elements(const scalecom_tensor* tensors, int64_t count) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += tensors[i].elements;
  return total;
}

// Runs function(tensor, first, last) over ranges of pieces, `piece(tensor)` elements each,
// that together cover every tensor once. A task takes the pieces that begin in its share of
// the elements of the whole list, so it may hold many small tensors or part of a large one.
template <typename Piece, typename Function>
void run_pieces(const scalecom_tensor* tensors, int64_t count, const scalecom_executor* executor,
                const Piece& piece, const Function& function) {
  const int64_t tasks = ceil_div(total_elements(tensors, count), kTaskElements);
  run_tasks(executor, tasks, [&](int64_t index) {
    const int64_t begin = index * kTaskElements;
    const int64_t end = begin + kTaskElements;
    int64_t start = 0;
    for (int64_t i = 0; i < count && start < end; ++i) {
      const scalecom_tensor& t = tensors[i];
      const int64_t low = maximum(0, begin - start);
      const int64_t high = minimum(t.elements, end - start);
      start += t.elements;
      if (low >= high) continue;
      const int64_t size = piece(t);
      const int64_t first = ceil_div(low, size);
      const int64_t last = ceil_div(high, size);
      if (first < last) function(t, first, last);
    }
  });
}

inline void raise_flag(uint32_t* flag) { __atomic_store_n(flag, 1u, __ATOMIC_RELAXED); }

}  // namespace scalecom

#endif  // SCALECOM_CORE_CPU_PARALLEL_H_
