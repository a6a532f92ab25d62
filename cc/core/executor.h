// Executors: where backends run their tasks, and how phases of tasks are
// scheduled on one.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tf_bn_ops {

// A source of threads: TensorFlow's intra-op thread pool, the C ABI's
// SpawningExecutor, or the calling thread.
class Executor {
 public:
  virtual ~Executor() = default;
  // Threads that may work at once, the caller's included; at least 1.
  virtual int NumThreads() const = 0;
  // Runs `work` on some thread, sooner or later. Must not run it inside this
  // call.
  virtual void Schedule(std::function<void()> work) = 0;
};

// Tasks in shares of neighbours, which threads take one by one.
//
// Dynamic scheduling with affinity: each thread takes the tasks of its own
// share first, in order, then those that are left in others, so that a slow
// thread delays no other. Any thread may take at any time; which tasks are done
// is not known here.
class TaskShares {
 public:
  static constexpr int64_t kNone = -1;

  // No share.
  TaskShares() = default;
  // Share s has the tasks from bounds[s] up to, without, bounds[s + 1].
  explicit TaskShares(const std::vector<int64_t>& bounds)
      : shares_(bounds.size() - 1) {
    for (size_t s = 0; s < shares_.size(); ++s) {
      shares_[s].next.store(bounds[s], std::memory_order_relaxed);
      shares_[s].end = bounds[s + 1];
    }
  }

  // A task of share `first`, else of the next one that has any; kNone: all are
  // taken.
  int64_t Take(size_t first) {
    for (size_t k = 0; k < shares_.size(); ++k) {
      Share& share = shares_[(first + k) % shares_.size()];
      if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
      const int64_t task = share.next.fetch_add(1, std::memory_order_relaxed);
      if (task < share.end) return task;
    }
    return kNone;
  }

 private:
  struct Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares_;
};

// Independent tasks: task(0) ... task(num_tasks - 1), each once.
struct Phase {
  int64_t num_tasks;
  std::function<void(int64_t)> task;
  // Shares of neighbouring tasks: share s has the tasks from share_bounds[s] up
  // to, without, share_bounds[s + 1]. Borrowed; nullptr: all are one share.
  const std::vector<int64_t>* share_bounds = nullptr;
  // If set, runs once, after the last task (there is one) and before the phase
  // ends.
  std::function<void()> last = {};
};

// Runs phases one after the other on `threads` threads, the calling one and
// the executor's, with a barrier between two phases. Returns when all tasks are
// done.
//
// Thread t takes tasks from share t first (TaskShares), so that what it has
// read in one phase is in its L2 in the next. A thread waits only for tasks
// that another one has begun: no deadlock when the pool is busy, when the
// caller is itself one of its threads, or when Schedule() throws (then fewer
// threads do the work). Every task runs in the floating-point state
// of fp_env.h.
//
// Threads are woken once for all phases and spin at barriers before they sleep:
// a wake-up takes 40 microseconds in a virtual machine.
//
// Throws std::bad_alloc before a task has begun; a task must not throw.
void RunPhases(Executor& executor, int threads, std::vector<Phase> phases);

}  // namespace tf_bn_ops
