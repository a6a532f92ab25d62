// The C ABI of the CUDA backend: checks arguments and calls cc/cuda.

#include "cc/c_api/tf_bn_ops_cuda_c.h"

#include <exception>
#include <string>

#include "cc/c_api/args.h"
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/cuda/cuda_backend.h"

namespace {

using tf_bn_ops::BatchNormGradFormula;
using tf_bn_ops::CudaWorkspaceBytes;
using tf_bn_ops::DType;
using tf_bn_ops::SizeOf;
using tf_bn_ops::View;
using tf_bn_ops::c_api::Fail;

bool IsAligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// One message, or empty. A device faults on a misaligned element.
std::string CheckAlignment(const BatchNormGradFormula::Args& args) {
  for (const void* p :
       {args.y_backprop, args.x, static_cast<const void*>(args.x_backprop)}) {
    if (!IsAligned(p, SizeOf(args.dtype))) {
      return "y_backprop, x and x_backprop must be aligned to their element "
             "type";
    }
  }
  for (const void* p : {args.scale, args.mean, args.variance,
                        static_cast<const void*>(args.scale_backprop),
                        static_cast<const void*>(args.offset_backprop)}) {
    if (!IsAligned(p, SizeOf(args.stat_dtype))) {
      return "scale, mean, variance, scale_backprop and offset_backprop must "
             "be aligned to their element type";
    }
  }
  return "";
}

}  // namespace

int tfbn_cuda_workspace(int64_t outer, int64_t channels, int64_t inner,
                        int32_t dtype, int64_t* bytes, char* error,
                        size_t error_size) try {
  if (bytes == nullptr)
    return Fail("bytes must not be NULL", error, error_size);
  if (!tf_bn_ops::c_api::IsDType(dtype)) {
    return Fail("dtype must be one of the TFBN_ element types", error,
                error_size);
  }
  const View view{outer, channels, inner};
  const std::string message = tf_bn_ops::c_api::CheckView(view);
  if (!message.empty()) return Fail(message, error, error_size);
  *bytes = static_cast<int64_t>(CudaWorkspaceBytes<BatchNormGradFormula>(
      view, static_cast<DType>(dtype)));
  return 0;
} catch (const std::exception& e) {
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
}

int tfbn_cuda_batch_norm_grad(const tfbn_batch_norm_grad_args* c_args,
                              void* workspace, int64_t workspace_bytes,
                              void* cuda_stream, int64_t group_bytes,
                              char* error, size_t error_size) try {
  BatchNormGradFormula::Args args;
  std::string message = tf_bn_ops::c_api::ReadArgs(c_args, &args);
  if (message.empty()) message = CheckAlignment(args);
  if (!message.empty()) return Fail(message, error, error_size);
  const int64_t needed = static_cast<int64_t>(
      CudaWorkspaceBytes<BatchNormGradFormula>(args.view, args.dtype));
  if (workspace == nullptr || workspace_bytes < needed) {
    return Fail("workspace must have the " + std::to_string(needed) +
                    " bytes that tfbn_cuda_workspace returns",
                error, error_size);
  }
  if (!IsAligned(workspace, sizeof(double))) {
    return Fail("workspace must be aligned to 8 bytes", error, error_size);
  }
  if (group_bytes < tf_bn_ops::kCudaGroupsByDevice) {
    return Fail("group_bytes must be TFBN_CUDA_GROUPS_BY_DEVICE, 0 or more",
                error, error_size);
  }
  const int failed = tf_bn_ops::CudaLaunch<BatchNormGradFormula>(
      args, workspace, cuda_stream, group_bytes);
  if (failed != 0) {
    return Fail(std::string("CUDA launch failed: ") +
                    tf_bn_ops::CudaErrorMessage(failed),
                error, error_size);
  }
  return 0;
} catch (const std::exception& e) {
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
}
