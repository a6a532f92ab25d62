#include "cc/c_api/tf_bn_ops_c.h"

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/partition.h"
#include "cc/cpu/batch_norm_grad.h"

namespace {

using tf_bn_ops::BatchNormGradArgs;
using tf_bn_ops::DType;
using tf_bn_ops::View;

int Fail(const std::string& message, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) {
    std::snprintf(error, error_size, "%s", message.c_str());
  }
  return 1;
}

// A thread for each piece of work: callers of the C ABI test and measure, they
// have no pool.
class PlainThreads final : public tf_bn_ops::Threads {
 public:
  explicit PlainThreads(int count) : count_(count) {}
  ~PlainThreads() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int Count() const override { return count_; }
  void Schedule(std::function<void()> work) override {
    threads_.emplace_back(std::move(work));
  }

 private:
  const int count_;
  std::vector<std::thread> threads_;
};

bool IsDType(int32_t value) {
  return value >= 0 && value < tf_bn_ops::kNumDTypes;
}

// One sentence, or empty when the view is usable.
std::string CheckView(const View& view) {
  if (view.outer < 0 || view.channels < 0 || view.inner < 0) {
    return "outer, channels and inner must not be negative";
  }
  int64_t elements;
  if (__builtin_mul_overflow(view.outer, view.channels, &elements) ||
      __builtin_mul_overflow(elements, view.inner, &elements) ||
      elements > (int64_t{1} << 47)) {
    return "outer * channels * inner is larger than any memory";
  }
  return "";
}

std::string CheckArgs(const BatchNormGradArgs& args) {
  const std::string view_error = CheckView(args.view);
  if (!view_error.empty()) return view_error;
  if (args.view.channels > 0 &&
      (args.scale == nullptr || args.mean == nullptr ||
       args.variance == nullptr || args.scale_backprop == nullptr ||
       args.offset_backprop == nullptr)) {
    return "scale, mean, variance, scale_backprop and offset_backprop must not "
           "be NULL";
  }
  if (NumElements(args.view) > 0 &&
      (args.y_backprop == nullptr || args.x == nullptr ||
       args.x_backprop == nullptr)) {
    return "y_backprop, x and x_backprop must not be NULL";
  }
  return "";
}

}  // namespace

int tfbn_cpu_batch_norm_grad(const tfbn_batch_norm_grad_args* c_args,
                             const char* implementation, int threads,
                             char* error, size_t error_size) try {
  if (c_args == nullptr)
    return Fail("args must not be NULL", error, error_size);
  if (!IsDType(c_args->dtype) || !IsDType(c_args->stat_dtype)) {
    return Fail("dtype and stat_dtype must be one of the TFBN_ element types",
                error, error_size);
  }
  if (threads < 1) return Fail("threads must be at least 1", error, error_size);
  BatchNormGradArgs args;
  args.view = View{c_args->outer, c_args->channels, c_args->inner};
  args.dtype = static_cast<DType>(c_args->dtype);
  args.stat_dtype = static_cast<DType>(c_args->stat_dtype);
  args.is_training = c_args->is_training != 0;
  args.variance_is_rstd = c_args->variance_is_rstd != 0;
  args.epsilon = c_args->epsilon;
  args.y_backprop = c_args->y_backprop;
  args.x = c_args->x;
  args.scale = c_args->scale;
  args.mean = c_args->mean;
  args.variance = c_args->variance;
  args.x_backprop = c_args->x_backprop;
  args.scale_backprop = c_args->scale_backprop;
  args.offset_backprop = c_args->offset_backprop;
  const std::string args_error = CheckArgs(args);
  if (!args_error.empty()) return Fail(args_error, error, error_size);

  std::string sentence;
  const tf_bn_ops::Implementation* const chosen =
      implementation == nullptr
          ? tf_bn_ops::SelectedImplementation(&sentence)
          : tf_bn_ops::FindImplementation(implementation, &sentence);
  if (chosen == nullptr) return Fail(sentence, error, error_size);
  std::vector<char> workspace(tf_bn_ops::CpuBatchNormGradWorkspace(args.view));
  PlainThreads pool(threads);
  tf_bn_ops::CpuBatchNormGrad(args, *chosen, pool, workspace.data());
  return 0;
} catch (
    const std::exception& e) {  // No memory or no threads; nothing else throws.
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
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
