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

void GpuBackend::Launch(tf::OpKernelContext* context,
                        const BatchNormGradArgs& args) {
  tf::DeviceContext* const device = context->op_device_context();
  OP_REQUIRES(context, device != nullptr && device->stream() != nullptr,
              absl::InternalError("the GPU device has no stream"));
  const int64_t bytes = static_cast<int64_t>(
      CudaWorkspaceBytes<BatchNormGradFormula>(args.view, args.dtype));
  tf::Tensor workspace;
  OP_REQUIRES_OK(context,
                 context->allocate_temp(tf::DT_INT8, tf::TensorShape({bytes}),
                                        &workspace));
  // TensorFlow frees temporary memory in the order of the stream.
  const int error = CudaLaunch<BatchNormGradFormula>(
      args, workspace.data(),
      device->stream()->platform_specific_handle().stream);
  OP_REQUIRES(context, error == 0,
              absl::InternalError(absl::StrCat(
                  "CUDA refused to launch the batch-norm gradient: ",
                  CudaErrorMessage(error))));
}

}  // namespace tf_bn_ops
