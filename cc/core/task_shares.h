// Tasks in shares of neighbours, which threads take one by one.

#ifndef TF_BN_OPS_CC_CORE_TASK_SHARES_H_
#define TF_BN_OPS_CC_CORE_TASK_SHARES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_bn_ops {

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

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_TASK_SHARES_H_
