// Which kernels compute a call, and its workspace. They are in kernels/.

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cc/core/formulas/all_formulas.h"
#include "cc/gpu/gpu_backend.h"
#include "cc/gpu/launch_plan.h"

namespace tf_bn_ops {

size_t GpuWorkspaceBytes(FormulaKind formula, const View& view, DType dtype) {
  size_t bytes = 1;
#define TFBN_WORKSPACE(unused, F, name) \
  if (F::kKind == formula)              \
    bytes = std::max(bytes, gpu::WorkspaceBytes<F>(view, dtype));
  TFBN_FOR_EACH_FORMULA(TFBN_WORKSPACE, )
#undef TFBN_WORKSPACE
  return bytes;
}

int RunOnGpu(const Call& call, void* workspace, void* cuda_stream) {
  return RunWithCopies(
      call,
      [&](const Call& computed) {
        switch (FormulaOf(computed)) {
#define TFBN_CASE(unused, F, name) \
  case FormulaIndex::k##F:         \
    return gpu::LaunchFormulaOnGpu<F>(computed, workspace, cuda_stream);
          TFBN_FOR_EACH_FORMULA(TFBN_CASE, )
#undef TFBN_CASE
        }
        return 0;
      },
      [&](void* to, const void* from, size_t bytes) -> int {
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                               static_cast<cudaStream_t>(cuda_stream));
      });
}

const char* GpuErrorMessage(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace tf_bn_ops
