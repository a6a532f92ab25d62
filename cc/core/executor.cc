// Dynamic scheduling of phases over atomic counters, one for each share.

#include "cc/core/executor.h"

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

// Backoff at a barrier: a thread spins this long before it sleeps on the
// condition variable. A few times the cost of a wake-up (5 to 50 microseconds),
// so that sleeping adds little to a wait that long.
constexpr std::chrono::microseconds kSpinTime{200};
constexpr int kSpinsPerClockRead = 32;

// The processor's hint that this is a spin loop: yields execution resources to
// the sibling hyperthread and saves power.
void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// State shared by the caller and its helper threads. A helper that starts after
// the caller has returned finds no task left and touches nothing else.
class PhaseRunner {
 public:
  explicit PhaseRunner(std::vector<Phase> phases)
      : phases_(std::move(phases)), progress_(phases_.size()) {
    for (size_t p = 0; p < phases_.size(); ++p) {
      const std::vector<int64_t> one_share = {0, phases_[p].num_tasks};
      progress_[p].tasks = TaskShares(
          phases_[p].share_bounds ? *phases_[p].share_bounds : one_share);
    }
  }

  // The work of thread `thread`; the caller is thread 0.
  void Work(size_t thread) {
    ScopedFpState fp_state;
    for (size_t p = 0; p < phases_.size(); ++p) {
      TakeTasks(p, thread);
      // After the last phase only the caller has to wait.
      if (thread == 0 || p + 1 < phases_.size()) Wait(p);
    }
  }

 private:
  struct Progress {
    TaskShares tasks;
    std::atomic<int64_t> done{0};  // Tasks, and Phase::last as one more.
  };

  void TakeTasks(size_t p, size_t thread) {
    const Phase& phase = phases_[p];
    Progress& progress = progress_[p];
    int64_t finished = 0;
    for (int64_t i; (i = progress.tasks.Take(thread)) != TaskShares::kNone;) {
      phase.task(i);
      ++finished;
    }
    if (finished > 0 &&
        progress.done.fetch_add(finished, std::memory_order_acq_rel) +
                finished ==
            phase.num_tasks) {
      if (phase.last) {
        phase.last();
        progress.done.fetch_add(1, std::memory_order_release);
      }
      std::lock_guard<std::mutex> lock(mutex_);
      end_of_phase_.notify_all();
    }
  }

  bool Done(size_t p) const {
    return progress_[p].done.load(std::memory_order_acquire) >=
           phases_[p].num_tasks + (phases_[p].last ? 1 : 0);
  }

  // Returns when all tasks of phase `p` are done.
  void Wait(size_t p) {
    if (Done(p)) return;
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        if (Done(p)) return;
        Relax();
      }
    } while (std::chrono::steady_clock::now() - begin < kSpinTime);
    std::unique_lock<std::mutex> lock(mutex_);
    end_of_phase_.wait(lock, [&] { return Done(p); });
  }

  // What the tasks capture is valid while a task is left.
  const std::vector<Phase> phases_;
  std::vector<Progress> progress_;
  std::mutex mutex_;
  std::condition_variable end_of_phase_;
};

void RunInline(const std::vector<Phase>& phases) {
  ScopedFpState fp_state;
  for (const Phase& phase : phases) {
    for (int64_t i = 0; i < phase.num_tasks; ++i) phase.task(i);
    if (phase.last) phase.last();
  }
}

}  // namespace

void RunPhases(Executor& executor, int threads, std::vector<Phase> phases) {
  if (threads <= 1) return RunInline(phases);
  auto runner = std::make_shared<PhaseRunner>(std::move(phases));
  try {
    for (int h = 1; h < threads; ++h) {
      executor.Schedule([runner, h] { runner->Work(h); });
    }
  } catch (const std::exception&) {
    // No memory or no thread for another helper: those that were scheduled and
    // the caller do the work. To leave here would destroy what the tasks use.
  }
  runner->Work(0);
}

}  // namespace tf_bn_ops
