// The GPU backend inside an op, on its CUDA stream and in its device memory,
// and the registrations of all ops' GPU kernels. Knows nothing of ops or
// layouts. Includes nothing of CUDA.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/call.h"
#include "cc/core/gather_stats.h"
#include "cc/gpu/gpu_backend.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/stream_executor/stream.h"

namespace tf_bn_ops {

namespace tf = ::tensorflow;

namespace {

// The op's CUDA stream; nullptr, with the context's status set, if there is
// none.
void* CudaStreamOf(tf::OpKernelContext* context) {
  tf::DeviceContext* const device = context->op_device_context();
  if (device != nullptr && device->stream() != nullptr) {
    return device->stream()->platform_specific_handle().stream;
  }
  context->SetStatus(absl::InternalError("the GPU device has no stream"));
  return nullptr;
}

// Sets the context's status to what a launch returned.
void Report(tf::OpKernelContext* context, int error) {
  OP_REQUIRES(context, error == 0,
              absl::InternalError(absl::StrCat(
                  "CUDA refused to launch ", context->op_kernel().type_string(),
                  ": ", GpuErrorMessage(error))));
}

// Backend of the op kernels (see batch_norm_op.h) on the GPU: enqueues a call
// on the op's stream, with a workspace from the op's allocator. On failure (no
// memory, a launch that CUDA refuses) sets the context's status.
struct GpuBackend {
  static constexpr const char* kDevice = "GPU";
  // cuDNN saves the inverse standard deviation, and TensorFlow's forward op
  // returns it.
  static constexpr bool kSavesRstd = true;

  static void Launch(tf::OpKernelContext* context, const Call& call) {
    void* const stream = CudaStreamOf(context);
    if (!context->status().ok()) return;
    const auto bytes = static_cast<int64_t>(
        GpuWorkspaceBytes(call.formula, call.view, call.dtype));
    tf::Tensor workspace;
    OP_REQUIRES_OK(context,
                   context->allocate_temp(tf::DT_INT8, tf::TensorShape({bytes}),
                                          &workspace));
    // TensorFlow frees temporary memory in the order of the stream.
    Report(context, RunOnGpu(call, workspace.data(), stream));
  }
  static void Launch(tf::OpKernelContext* context,
                     const GatherStatsArgs& args) {
    void* const stream = CudaStreamOf(context);
    if (context->status().ok()) Report(context, GpuGatherStats(args, stream));
  }
};

}  // namespace
}  // namespace tf_bn_ops

#define TFBN_KERNEL_DEVICE tensorflow::DEVICE_GPU
#define TFBN_KERNEL_BACKEND GpuBackend
#include "cc/tf/kernels/registrations.h"
