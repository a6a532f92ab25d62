// Runs the CPU backend on the intra-op thread pool.

#define EIGEN_USE_THREADS
#include "cc/tf/kernels/cpu_launch.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cc/core/executor.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"
#include "cc/tf/ops/check_shapes.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// Workspaces up to this size are on the stack: for tensors of a few KB an
// allocation would be a visible part of the call. Enough for 256 channels of
// the first order in one block, for 128 of the second, but for float64
// (tests/core/test_plan.py).
constexpr size_t kStackWorkspaceBytes = 21504;

class ThreadPoolExecutor final : public Executor {
 public:
  explicit ThreadPoolExecutor(const Eigen::ThreadPoolDevice& device)
      : device_(device) {}
  int NumThreads() const override { return device_.numThreads(); }
  void Schedule(std::function<void()> work) override {
    device_.getPool()->Schedule(std::move(work));
  }

 private:
  const Eigen::ThreadPoolDevice& device_;
};

}  // namespace

void CpuBackend::Launch(tf::OpKernelContext* context, const Call& call) {
  std::string error;
  const Implementation* const implementation = SelectedImplementation(&error);
  OP_REQUIRES(context, implementation != nullptr,
              absl::FailedPreconditionError(error));
  double on_stack[kStackWorkspaceBytes / sizeof(double)];
  void* workspace = on_stack;
  tf::Tensor allocated;
  const size_t bytes = CpuWorkspaceBytes(call.formula, call.view, call.dtype);
  if (bytes > sizeof(on_stack)) {
    OP_REQUIRES_OK(context, context->allocate_temp(
                                tf::DT_INT8,
                                tf::TensorShape({static_cast<int64_t>(bytes)}),
                                &allocated));
    workspace = allocated.data();
  }
  ThreadPoolExecutor executor(context->eigen_cpu_device());
  RunOnCpu(call, *implementation, executor, workspace);
}

void CpuBackend::Launch(tf::OpKernelContext* context,
                        const GatherStatsArgs& args) {
  const int64_t invalid = FindInvalidCount(args);
  OP_REQUIRES(
      context, invalid < 0,
      InvalidArgument("counts must be finite and not negative, but counts[",
                      invalid, "] is ", args.counts[invalid]));
  GatherStats(args);
}

}  // namespace tf_bn_ops
