// Cuts a list of tensors into tasks of about equal size for the caller's executor.
#ifndef SCALECOM_CORE_CPU_PARALLEL_H_
#define SCALECOM_CORE_CPU_PARALLEL_H_

#include "core/cpu/float_mode.h"
#include "core/layout.h"
#include "scalecom/scalecom.h"

namespace scalecom {

// One task touches about a megabyte: enough to hide the cost of starting it.
constexpr int64_t kTaskElements = int64_t{1} << 17;
constexpr int64_t kTaskEntries = int64_t{1} << 13;

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

inline int64_t element_count(const scalecom_tensor& t) { return t.elements; }

template <typename Tensor, typename Size>
int64_t total(const Tensor* tensors, int64_t count, const Size& size) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += size(tensors[i]);
  return sum;
}

// Tensor (or slices) i has size(i) items. Runs function(tensor, low, high) over ranges of items
// that together cover every tensor once; a task takes `share` of the items of the whole list, so
// it may hold many small tensors or part of a large one.
template <typename Tensor, typename Size, typename Function>
void run_ranges(const Tensor* tensors, int64_t count, const scalecom_executor* executor,
                int64_t share, const Size& size, const Function& function) {
  run_tasks(executor, ceil_div(total(tensors, count, size), share), [&](int64_t index) {
    const int64_t begin = index * share;
    const int64_t end = begin + share;
    int64_t start = 0;
    for (int64_t i = 0; i < count && start < end; ++i) {
      const int64_t items = size(tensors[i]);
      const int64_t low = maximum(0, begin - start);
      const int64_t high = minimum(items, end - start);
      start += items;
      if (low < high) function(tensors[i], low, high);
    }
  });
}

// The same over elements, in pieces of `piece(tensor)` that are not cut: a piece belongs to
// the task in whose share it begins.
template <typename Piece, typename Function>
void run_pieces(const scalecom_tensor* tensors, int64_t count, const scalecom_executor* executor,
                const Piece& piece, const Function& function) {
  run_ranges(tensors, count, executor, kTaskElements, element_count,
             [&](const scalecom_tensor& t, int64_t low, int64_t high) {
               const int64_t first = ceil_div(low, piece(t));
               const int64_t last = ceil_div(high, piece(t));
               if (first < last) function(t, first, last);
             });
}

inline void raise_flag(uint32_t* flag) { __atomic_store_n(flag, 1u, __ATOMIC_RELAXED); }

}  // namespace scalecom

#endif  // SCALECOM_CORE_CPU_PARALLEL_H_
