// Which formula a call takes, and its workspace. The kernels are in kernels/.

#include <algorithm>

#include "cc/core/formulas/all_formulas.h"
#include "cc/core/formulas/fitting_formula.h"
#include "cc/cuda/cuda_backend.h"
#include "cc/cuda/gpu_runtime.h"
#include "cc/cuda/launch_plan.h"

namespace tf_bn_ops {
namespace {

// Enqueues a copy within device memory.
class StreamCopy {
 public:
  explicit StreamCopy(void* cuda_stream)
      : cuda_stream_(static_cast<cudaStream_t>(cuda_stream)) {}
  int operator()(void* to, const void* from, size_t bytes) const {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                           cuda_stream_);
  }

 private:
  const cudaStream_t cuda_stream_;
};

}  // namespace

template <typename Formula>
size_t CudaWorkspaceBytes(const View& view, DType dtype) {
  return std::max<size_t>(1, cuda::WorkspaceBytes<Formula>(view, dtype));
}

template <typename Formula>
int CudaLaunch(const typename Formula::Args& args, void* workspace,
               void* cuda_stream) {
  return RunFittingFormula<Formula>(
      args,
      [&](auto fitting, const auto& its_args) {
        return cuda::LaunchFormulaOnCuda<typename decltype(fitting)::Formula>(
            its_args, workspace, cuda_stream);
      },
      StreamCopy(cuda_stream));
}

#define TFBN_INSTANTIATE(unused, Formula, name)                    \
  template size_t CudaWorkspaceBytes<Formula>(const View&, DType); \
  template int CudaLaunch<Formula>(const Formula::Args&, void*, void*);
TFBN_FOR_EACH_FORMULA(TFBN_INSTANTIATE, )

const char* CudaErrorMessage(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace tf_bn_ops
