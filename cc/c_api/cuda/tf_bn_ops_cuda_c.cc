// The C ABI of the CUDA backend: checks arguments and calls cc/cuda.

#include "cc/c_api/tf_bn_ops_cuda_c.h"

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <string>

#include "cc/c_api/args.h"
#include "cc/cuda/cuda_backend.h"

namespace {

using tf_bn_ops::BatchNormAddFormula;
using tf_bn_ops::BatchNormArgs;
using tf_bn_ops::BatchNormFormula;
using tf_bn_ops::BatchNormGradArgs;
using tf_bn_ops::BatchNormGradFormula;
using tf_bn_ops::DType;
using tf_bn_ops::SizeOf;
using tf_bn_ops::View;
using tf_bn_ops::c_api::Fail;

bool AreAligned(size_t bytes, std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [=](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  });
}

// One message, or empty. A device faults on a misaligned element.
std::string CheckAlignment(const BatchNormArgs& args) {
  if (!AreAligned(SizeOf(args.dtype), {args.x, args.side_input, args.y})) {
    return "x, side_input and y must be aligned to their element type";
  }
  if (!AreAligned(
          SizeOf(args.stat_dtype),
          {args.scale, args.offset, args.mean, args.variance, args.batch_mean,
           args.batch_variance, args.saved_mean, args.saved_variance})) {
    return "scale, offset, mean, variance, batch_mean, batch_variance, "
           "saved_mean and saved_variance must be aligned to their element "
           "type";
  }
  return "";
}

std::string CheckAlignment(const BatchNormGradArgs& args) {
  if (!AreAligned(SizeOf(args.dtype),
                  {args.y_backprop, args.x, args.x_backprop})) {
    return "y_backprop, x and x_backprop must be aligned to their element "
           "type";
  }
  if (!AreAligned(SizeOf(args.stat_dtype),
                  {args.scale, args.mean, args.variance, args.scale_backprop,
                   args.offset_backprop})) {
    return "scale, mean, variance, scale_backprop and offset_backprop must "
           "be aligned to their element type";
  }
  return "";
}

// Where a call runs.
struct Place {
  void* workspace;
  int64_t workspace_bytes;
  void* cuda_stream;
  int64_t group_bytes;
};

// One message, or empty.
std::string CheckPlace(const Place& place, int64_t needed) {
  if (place.workspace == nullptr || place.workspace_bytes < needed) {
    return "workspace must have the " + std::to_string(needed) +
           " bytes that tfbn_cuda_workspace returns";
  }
  if (!AreAligned(sizeof(double), {place.workspace})) {
    return "workspace must be aligned to 8 bytes";
  }
  if (place.group_bytes < tf_bn_ops::kCudaGroupsByDevice) {
    return "group_bytes must be TFBN_CUDA_GROUPS_BY_DEVICE, 0 or more";
  }
  return "";
}

// The device memory that a call of any formula needs.
int64_t WorkspaceBytes(const View& view, DType dtype) {
  size_t bytes = 0;
#define X(Formula) \
  bytes = std::max(bytes, tf_bn_ops::CudaWorkspaceBytes<Formula>(view, dtype));
  TFBN_FOR_EACH_CUDA_FORMULA(X)
#undef X
  return static_cast<int64_t>(bytes);
}

template <typename Formula, typename CArgs>
int Run(const CArgs* c_args, const Place& place, char* error,
        size_t error_size) try {
  typename Formula::Args args;
  std::string message = tf_bn_ops::c_api::ReadArgs(c_args, &args);
  if (message.empty()) message = CheckAlignment(args);
  if (message.empty()) {
    message = CheckPlace(place, WorkspaceBytes(args.view, args.dtype));
  }
  if (!message.empty()) return Fail(message, error, error_size);
  const int failed = tf_bn_ops::CudaLaunch<Formula>(
      args, place.workspace, place.cuda_stream, place.group_bytes);
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
  *bytes = WorkspaceBytes(view, static_cast<DType>(dtype));
  return 0;
} catch (const std::exception& e) {
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
}

int tfbn_cuda_batch_norm(const tfbn_batch_norm_args* args, void* workspace,
                         int64_t workspace_bytes, void* cuda_stream,
                         int64_t group_bytes, char* error, size_t error_size) {
  const Place place{workspace, workspace_bytes, cuda_stream, group_bytes};
  return args != nullptr && args->side_input != nullptr
             ? Run<BatchNormAddFormula>(args, place, error, error_size)
             : Run<BatchNormFormula>(args, place, error, error_size);
}

int tfbn_cuda_batch_norm_grad(const tfbn_batch_norm_grad_args* args,
                              void* workspace, int64_t workspace_bytes,
                              void* cuda_stream, int64_t group_bytes,
                              char* error, size_t error_size) {
  const Place place{workspace, workspace_bytes, cuda_stream, group_bytes};
  return Run<BatchNormGradFormula>(args, place, error, error_size);
}
