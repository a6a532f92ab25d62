// Hands tasks out from a counter that the caller and helpers share.

#include "cc/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "cc/core/fp_env.h"

namespace tf_bn_ops {
namespace {

// Shared by the caller and its helpers. A helper that starts late, when the
// caller has long returned, finds no task left and touches nothing else.
struct State {
  explicit State(int64_t n, const std::function<void(int64_t)>* task)
      : n(n), task(task) {}
  const int64_t n;
  const std::function<void(int64_t)>* const
      task;  // Valid while a task is left.
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::condition_variable all_done;

  void Work() {
    int64_t finished = 0;
    {
      ScopedFpState fp_state;
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
        (*task)(i);
        ++finished;
      }
    }
    if (finished == 0) return;
    if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == n) {
      std::lock_guard<std::mutex> lock(mutex);
      all_done.notify_all();
    }
  }
};

}  // namespace

void ParallelFor(Threads& threads, int64_t n,
                 const std::function<void(int64_t)>& task) {
  if (n <= 0) return;
  const int64_t helpers = std::min<int64_t>(threads.Count(), n) - 1;
  if (helpers <= 0) {
    ScopedFpState fp_state;
    for (int64_t i = 0; i < n; ++i) task(i);
    return;
  }
  auto state = std::make_shared<State>(n, &task);
  try {
    for (int64_t h = 0; h < helpers; ++h) {
      threads.Schedule([state] { state->Work(); });
    }
  } catch (const std::exception&) {
    // No memory or no thread for a further helper: those there are, and the
    // caller, do the work. Leaving here would pull `task` away under them.
  }
  state->Work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(
      lock, [&] { return state->done.load(std::memory_order_acquire) == n; });
}

}  // namespace tf_bn_ops
