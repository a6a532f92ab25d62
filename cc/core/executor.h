// Executors: where backends run their tasks, and how phases of tasks are
// scheduled on one.

#ifndef TF_BN_OPS_CC_CORE_EXECUTOR_H_
#define TF_BN_OPS_CC_CORE_EXECUTOR_H_

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

// The calling thread alone.
class InlineExecutor final : public Executor {
 public:
  int NumThreads() const override { return 1; }
  void Schedule(std::function<void()>) override {}
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

// Runs phases one after the other on the calling thread and on `executor`, with
// a barrier between two of them. Returns when all tasks are done.
//
// Thread t takes tasks from share t first (cc/core/task_shares.h says how), so
// that what it has read in one phase is in its L2 in the next. A thread waits
// only for tasks that another one has begun: no deadlock when the pool is busy,
// when the caller is itself one of its threads, or when Schedule() throws (then
// fewer threads do the work). The floating-point state is that of fp_env.h in
// every task.
//
// Threads are woken once for all phases and spin at barriers before they sleep:
// a wake-up takes 40 microseconds in a virtual machine.
void RunPhases(Executor& executor, std::vector<Phase> phases);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_EXECUTOR_H_
