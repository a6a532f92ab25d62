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

// The op's CUDA stream; nullptr, with the context's status set, if there is
// none.
stream_executor::Stream* StreamOf(tf::OpKernelContext* context) {
  tf::DeviceContext* const device = context->op_device_context();
  if (device != nullptr && device->stream() != nullptr) return device->stream();
  context->SetStatus(absl::InternalError("the GPU device has no stream"));
  return nullptr;
}

void* CudaStreamOf(stream_executor::Stream* stream) {
  return stream->platform_specific_handle().stream;
}

// Sets the context's status to what a launch returned.
void Report(tf::OpKernelContext* context, int error) {
  OP_REQUIRES(context, error == 0,
              absl::InternalError(absl::StrCat(
                  "CUDA refused to launch ", context->op_kernel().type_string(),
                  ": ", CudaErrorMessage(error))));
}

}  // namespace

void GpuBackend::Launch(tf::OpKernelContext* context, const Call& call) {
  stream_executor::Stream* const stream = StreamOf(context);
  if (stream == nullptr) return;
  const int64_t bytes = static_cast<int64_t>(
      CudaWorkspaceBytes(call.formula, call.view, call.dtype));
  tf::Tensor workspace;
  OP_REQUIRES_OK(context,
                 context->allocate_temp(tf::DT_INT8, tf::TensorShape({bytes}),
                                        &workspace));
  // TensorFlow frees temporary memory in the order of the stream.
  Report(context, RunOnCuda(call, workspace.data(), CudaStreamOf(stream)));
}

void GpuBackend::Launch(tf::OpKernelContext* context,
                        const GatherStatsArgs& args) {
  stream_executor::Stream* const stream = StreamOf(context);
  if (stream == nullptr) return;
  Report(context, CudaGatherStats(args, CudaStreamOf(stream)));
}

}  // namespace tf_bn_ops
