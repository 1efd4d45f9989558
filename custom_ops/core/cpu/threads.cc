// An executor for programs without a thread pool: threads started for one call.
#include <atomic>
#include <system_error>
#include <thread>

#include "scalecom/scalecom.h"

namespace {

struct Work {
  std::atomic<int64_t> next{0};
  const int64_t tasks;
  const scalecom_task task;
  void* const context;

  void run() {
    for (int64_t i = next++; i < tasks; i = next++) task(context, i);
  }
};

// Threads nest, so that they live on the stack: each starts the next, works, and joins it.
void run_with(int64_t more, Work* work) {
  if (more <= 0) {
    work->run();
    return;
  }
  std::thread other;
  try {
    other = std::thread(run_with, more - 1, work);
  } catch (const std::system_error&) {
    // No thread to be had: the tasks are run by those there are.
  }
  work->run();
  if (other.joinable()) other.join();
}

}  // namespace

extern "C" void scalecom_threads_run(void* state, int64_t tasks, scalecom_task task,
                                     void* context) {
  const int64_t threads = *static_cast<const int32_t*>(state);
  Work work{{0}, tasks, task, context};
  run_with((threads < tasks ? threads : tasks) - 1, &work);
}
