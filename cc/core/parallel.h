// How backends run independent tasks on somebody else's threads.

#ifndef TF_BN_OPS_CC_CORE_PARALLEL_H_
#define TF_BN_OPS_CC_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace tf_bn_ops {

// A source of threads. TensorFlow's intra-op pool, the C ABI's plain threads,
// or none.
class Threads {
 public:
  virtual ~Threads() = default;
  // Threads that may work at once, the caller's included; at least 1.
  virtual int Count() const = 0;
  // Hands `work` to some thread, sooner or later. Must not run it inside this
  // call.
  virtual void Schedule(std::function<void()> work) = 0;
};

// The calling thread alone.
class NoThreads final : public Threads {
 public:
  int Count() const override { return 1; }
  void Schedule(std::function<void()>) override {}
};

// Tasks that may run at once: task(0) ... task(n - 1), each once.
struct Phase {
  int64_t n;
  std::function<void(int64_t)> task;
};

// Runs phases one after the other on the caller's thread and on `threads`: a
// task begins when all tasks of the phases before it are done. Returns when all
// are done. Tasks are handed out one by one, in order, so a slow thread delays
// nobody. A thread waits only for tasks that another one has begun: no deadlock
// when the pool is busy, when the caller is itself one of its threads, or when
// Schedule() throws (which leaves the work to fewer threads). The
// floating-point state is that of fp_env.h in every task.
//
// Threads are woken once for all phases, and wait between them without going to
// sleep: in a virtual machine that costs 40 microseconds a time.
void ParallelFor(Threads& threads, std::vector<Phase> phases);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_PARALLEL_H_
