// The C ABI of the CUDA backend: checks arguments and calls cc/cuda.

#include "cc/c_api/tf_bn_ops_cuda_c.h"

#include <cstdint>
#include <exception>
#include <string>

#include "cc/c_api/read_call.h"
#include "cc/cuda/cuda_backend.h"

namespace {

using tf_bn_ops::c_api::CheckCall;
using tf_bn_ops::c_api::Fail;

// One message, or empty.
std::string CheckWorkspace(const void* workspace, int64_t bytes,
                           int64_t needed) {
  if (workspace == nullptr || bytes < needed) {
    return "workspace must have the " + std::to_string(needed) +
           " bytes that tfbn_cuda_workspace returns";
  }
  if (reinterpret_cast<uintptr_t>(workspace) % sizeof(double) != 0) {
    return "workspace must be aligned to 8 bytes";
  }
  return "";
}

int64_t WorkspaceBytes(const tfbn_call& call) {
  return static_cast<int64_t>(
      tf_bn_ops::CudaWorkspaceBytes(call.formula, call.view, call.dtype));
}

// Of what a launch returned.
int Report(int failed, char* error, size_t error_size) {
  if (failed == 0) return 0;
  return Fail(
      std::string("CUDA launch failed: ") + tf_bn_ops::CudaErrorMessage(failed),
      error, error_size);
}

}  // namespace

int tfbn_cuda_workspace(const tfbn_call* call, int64_t* bytes, char* error,
                        size_t error_size) try {
  std::string message;
  if (call == nullptr || bytes == nullptr) {
    message = "call and bytes must not be NULL";
  } else {
    message = tf_bn_ops::c_api::CheckDType(call->dtype, "dtype");
    if (message.empty()) message = tf_bn_ops::c_api::CheckView(call->view);
  }
  if (!message.empty()) return Fail(message, error, error_size);
  *bytes = WorkspaceBytes(*call);
  return 0;
} catch (const std::exception& e) {
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
}

int tfbn_cuda_run(const tfbn_call* call, void* workspace,
                  int64_t workspace_bytes, void* cuda_stream, char* error,
                  size_t error_size) try {
  std::string message = CheckCall(call);
  if (message.empty()) {
    message = CheckWorkspace(workspace, workspace_bytes, WorkspaceBytes(*call));
  }
  if (!message.empty()) return Fail(message, error, error_size);
  return Report(
      tf_bn_ops::RunOnCuda(tf_bn_ops::Call(*call), workspace, cuda_stream),
      error, error_size);
} catch (const std::exception& e) {
  return Fail(std::string("the system refused: ") + e.what(), error,
              error_size);
}

int tfbn_cuda_gather_stats(const tfbn_gather_stats* args, void* cuda_stream,
                           char* error, size_t error_size) {
  const std::string message = tf_bn_ops::c_api::CheckGatherStats(args);
  if (!message.empty()) return Fail(message, error, error_size);
  return Report(tf_bn_ops::CudaGatherStats(*args, cuda_stream), error,
                error_size);
}
