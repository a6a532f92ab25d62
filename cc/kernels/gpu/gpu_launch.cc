// Runs the GPU backend on the op's CUDA stream, in TensorFlow's device memory.

#include "cc/kernels/gpu/gpu_launch.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/cuda/cuda_backend.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/stream_executor/stream.h"

namespace tf_bn_ops {

namespace tf = ::tensorflow;

namespace {

template <typename Formula>
void LaunchFormula(tf::OpKernelContext* context,
                   const typename Formula::Args& args) {
  tf::DeviceContext* const device = context->op_device_context();
  OP_REQUIRES(context, device != nullptr && device->stream() != nullptr,
              absl::InternalError("the GPU device has no stream"));
  const int64_t bytes =
      static_cast<int64_t>(CudaWorkspaceBytes<Formula>(args.view, args.dtype));
  tf::Tensor workspace;
  OP_REQUIRES_OK(context,
                 context->allocate_temp(tf::DT_INT8, tf::TensorShape({bytes}),
                                        &workspace));
  // TensorFlow frees temporary memory in the order of the stream.
  const int error =
      CudaLaunch<Formula>(args, workspace.data(),
                          device->stream()->platform_specific_handle().stream);
  OP_REQUIRES(context, error == 0,
              absl::InternalError(absl::StrCat(
                  "CUDA refused to launch ", context->op_kernel().type_string(),
                  ": ", CudaErrorMessage(error))));
}

}  // namespace

#define TFBN_DEFINE_LAUNCH(F)                                                  \
  void GpuBackend::Launch(tf::OpKernelContext* context, const F::Args& args) { \
    LaunchFormula<F>(context, args);                                           \
  }
TFBN_FOR_EACH_CUDA_FORMULA(TFBN_DEFINE_LAUNCH)

}  // namespace tf_bn_ops
