// Hands tasks out from counters that the caller and helpers share.

#include "cc/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/core/fp_env.h"

namespace tf_bn_ops {
namespace {

// How long a thread looks for the end of a phase before it goes to sleep: a few
// times what it costs to be woken (5 to 50 microseconds), so that sleeping adds
// little to a wait that long.
constexpr std::chrono::microseconds kSpin{200};
// Looks between two readings of the clock.
constexpr int kLooks = 32;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Shared by the caller and its helpers. A helper that starts late, when the
// caller has long returned, finds no task left and touches nothing else.
class State {
 public:
  explicit State(std::vector<Phase> phases)
      : phases_(std::move(phases)), progress_(phases_.size()) {}

  // After the last phase only the caller has to wait.
  void Work(bool is_caller) {
    ScopedFpState fp_state;
    for (size_t p = 0; p < phases_.size(); ++p) {
      const Phase& phase = phases_[p];
      Progress& progress = progress_[p];
      int64_t finished = 0;
      for (int64_t i; (i = progress.next.fetch_add(
                           1, std::memory_order_relaxed)) < phase.n;) {
        phase.task(i);
        ++finished;
      }
      if (finished > 0 &&
          progress.done.fetch_add(finished, std::memory_order_acq_rel) +
                  finished ==
              phase.n) {
        std::lock_guard<std::mutex> lock(mutex_);
        end_of_phase_.notify_all();
      }
      if (is_caller || p + 1 < phases_.size()) Wait(p);
    }
  }

 private:
  struct Progress {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
  };

  bool Done(size_t p) const {
    return progress_[p].done.load(std::memory_order_acquire) >= phases_[p].n;
  }

  // Returns when all tasks of phase `p` are done.
  void Wait(size_t p) {
    if (Done(p)) return;
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < kLooks; ++i) {
        if (Done(p)) return;
        Relax();
      }
    } while (std::chrono::steady_clock::now() - begin < kSpin);
    std::unique_lock<std::mutex> lock(mutex_);
    end_of_phase_.wait(lock, [&] { return Done(p); });
  }

  // The functions' captures are valid while a task is left.
  const std::vector<Phase> phases_;
  std::vector<Progress> progress_;
  std::mutex mutex_;
  std::condition_variable end_of_phase_;
};

}  // namespace

void ParallelFor(Threads& threads, std::vector<Phase> phases) {
  int64_t widest = 0;
  for (const Phase& phase : phases) widest = std::max(widest, phase.n);
  const int64_t helpers = std::min<int64_t>(threads.Count(), widest) - 1;
  if (helpers <= 0) {
    ScopedFpState fp_state;
    for (const Phase& phase : phases) {
      for (int64_t i = 0; i < phase.n; ++i) phase.task(i);
    }
    return;
  }
  auto state = std::make_shared<State>(std::move(phases));
  try {
    for (int64_t h = 0; h < helpers; ++h) {
      threads.Schedule([state] { state->Work(false); });
    }
  } catch (const std::exception&) {
    // No memory or no thread for a further helper: those there are, and the
    // caller, do the work. Leaving here would pull the tasks away under them.
  }
  state->Work(true);
}

}  // namespace tf_bn_ops
