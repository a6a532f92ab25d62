// Lends TensorFlow's thread pool and memory to the CPU backend.

#define EIGEN_USE_THREADS
#include "cc/kernels/cpu_launch.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cc/core/executor.h"
#include "cc/cpu/batch_norm_grad.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// Workspaces up to this size live on the stack: for a tensor of a few KB the
// allocation would be a visible part of the call.
constexpr size_t kSmallWorkspaceBytes = 4096;

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

// A gradient of either order, in `bytes` bytes of scratch memory.
template <typename Args>
void Run(tf::OpKernelContext* context, const Args& args, size_t bytes,
         void (*compute)(const Args&, const Implementation&, Executor&,
                         void*)) {
  std::string error;
  const Implementation* const implementation = SelectedImplementation(&error);
  OP_REQUIRES(context, implementation != nullptr,
              absl::FailedPreconditionError(error));
  double small[kSmallWorkspaceBytes / sizeof(double)];
  void* workspace = small;
  tf::Tensor allocated;
  if (bytes > sizeof(small)) {
    OP_REQUIRES_OK(context, context->allocate_temp(
                                tf::DT_INT8,
                                tf::TensorShape({static_cast<int64_t>(bytes)}),
                                &allocated));
    workspace = allocated.data();
  }
  ThreadPoolExecutor threads(context->eigen_cpu_device());
  compute(args, *implementation, threads, workspace);
}

}  // namespace

void CpuBackend::Launch(tf::OpKernelContext* context,
                        const BatchNormGradArgs& args) {
  Run(context, args, CpuBatchNormGradWorkspace(args.view), CpuBatchNormGrad);
}

void CpuBackend::Launch(tf::OpKernelContext* context,
                        const BatchNormGradGradArgs& args) {
  Run(context, args, CpuBatchNormGradGradWorkspace(args.view),
      CpuBatchNormGradGrad);
}

}  // namespace tf_bn_ops
