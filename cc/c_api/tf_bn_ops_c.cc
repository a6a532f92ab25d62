// The C ABI of the CPU backend: checks, then calls cc/cpu.

#include "cc/c_api/tf_bn_ops_c.h"

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/c_api/args.h"
#include "cc/core/partition.h"
#include "cc/cpu/batch_norm_grad.h"
#include "cc/cpu/cache.h"

namespace {

using tf_bn_ops::View;
using tf_bn_ops::c_api::CheckView;
using tf_bn_ops::c_api::Fail;
using tf_bn_ops::c_api::ReadArgs;

// A thread for each piece of work: callers of the C ABI test and measure, they
// have no pool.
class SpawningExecutor final : public tf_bn_ops::Executor {
 public:
  explicit SpawningExecutor(int count) : count_(count) {}
  ~SpawningExecutor() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int NumThreads() const override { return count_; }
  void Schedule(std::function<void()> work) override {
    threads_.emplace_back(std::move(work));
  }

 private:
  const int count_;
  std::vector<std::thread> threads_;
};

// A gradient of either order: its workspace and the function that computes it.
template <typename Args, typename CArgs>
int Run(const CArgs* c_args, size_t (*workspace_of)(const View&),
        void (*compute)(const Args&, const tf_bn_ops::Implementation&,
                        tf_bn_ops::Executor&, void*),
        const char* implementation, int threads, char* error,
        size_t error_size) try {
  Args args;
  const std::string args_error = ReadArgs(c_args, &args);
  if (!args_error.empty()) return Fail(args_error, error, error_size);
  if (threads < 1) return Fail("threads must be at least 1", error, error_size);

  std::string sentence;
  const tf_bn_ops::Implementation* const chosen =
      implementation == nullptr
          ? tf_bn_ops::SelectedImplementation(&sentence)
          : tf_bn_ops::FindImplementation(implementation, &sentence);
  if (chosen == nullptr) return Fail(sentence, error, error_size);
  std::vector<char> workspace(workspace_of(args.view));
  SpawningExecutor pool(threads);
  compute(args, *chosen, pool, workspace.data());
  return 0;
} catch (
    const std::exception& e) {  // No memory or no threads; nothing else throws.
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
}

}  // namespace

int tfbn_cpu_batch_norm_grad(const tfbn_batch_norm_grad_args* args,
                             const char* implementation, int threads,
                             char* error, size_t error_size) {
  return Run<tf_bn_ops::BatchNormGradArgs>(
      args, tf_bn_ops::CpuBatchNormGradWorkspace, tf_bn_ops::CpuBatchNormGrad,
      implementation, threads, error, error_size);
}

int tfbn_cpu_batch_norm_grad_grad(const tfbn_batch_norm_grad_grad_args* args,
                                  const char* implementation, int threads,
                                  char* error, size_t error_size) {
  return Run<tf_bn_ops::BatchNormGradGradArgs>(
      args, tf_bn_ops::CpuBatchNormGradGradWorkspace,
      tf_bn_ops::CpuBatchNormGradGrad, implementation, threads, error,
      error_size);
}

int64_t tfbn_last_level_cache_bytes(void) {
  return tf_bn_ops::LastLevelCacheBytes();
}

const char* tfbn_cpu_implementation(int i, int* supported) {
  const auto& all = tf_bn_ops::Implementations();
  if (i < 0 || i >= static_cast<int>(all.size())) return nullptr;
  if (supported != nullptr) *supported = all[i].supported() ? 1 : 0;
  return all[i].name;
}

int tfbn_partition(int64_t outer, int64_t channels, int64_t inner,
                   tfbn_partition_info* info, char* error, size_t error_size) {
  if (info == nullptr) return Fail("info must not be NULL", error, error_size);
  const View view{outer, channels, inner};
  const std::string view_error = CheckView(view);
  if (!view_error.empty()) return Fail(view_error, error, error_size);
  const tf_bn_ops::Partition partition = tf_bn_ops::MakePartition(view);
  info->blocks = NumBlocks(partition);
  info->fold =
      partition.kind == tf_bn_ops::Partition::kRows ? partition.fold : 0;
  info->workspace_bytes =
      static_cast<int64_t>(tf_bn_ops::CpuBatchNormGradWorkspace(view));
  return 0;
}
