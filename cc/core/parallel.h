// How backends run independent tasks on somebody else's threads.

#ifndef TF_BN_OPS_CC_CORE_PARALLEL_H_
#define TF_BN_OPS_CC_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>

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

// Calls task(0) ... task(n - 1), each once, in any order, on the caller's
// thread and on `threads`; returns when all are done. Tasks are handed out one
// by one, so a slow thread delays nobody. The caller works too and waits only
// for tasks that a thread has begun: no deadlock when the pool is busy, when
// the caller is itself one of its threads, or when Schedule() throws (which
// leaves the work to fewer threads). The floating-point state is that of
// fp_env.h in every task.
void ParallelFor(Threads& threads, int64_t n,
                 const std::function<void(int64_t)>& task);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_PARALLEL_H_
