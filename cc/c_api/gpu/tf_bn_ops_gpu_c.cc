// The C ABI of the CUDA backend: checks arguments and calls cc/gpu.

#include "cc/c_api/tf_bn_ops_gpu_c.h"

#include <cstdint>
#include <string>

#include "cc/c_api/read_call.h"
#include "cc/gpu/gpu_backend.h"

namespace {

using tf_bn_ops::c_api::Report;

int64_t WorkspaceBytes(const tfbn_call& call) {
  return static_cast<int64_t>(
      tf_bn_ops::GpuWorkspaceBytes(call.formula, call.view, call.dtype));
}

// Of what a launch returned.
std::string SentenceOf(int error) {
  return error == 0 ? ""
                    : std::string("CUDA launch failed: ") +
                          tf_bn_ops::GpuErrorMessage(error);
}

}  // namespace

int tfbn_gpu_workspace(const tfbn_call* call, int64_t* bytes, char* error,
                       size_t error_size) {
  return Report(error, error_size, [&]() -> std::string {
    if (call == nullptr || bytes == nullptr) {
      return "call and bytes must not be NULL";
    }
    std::string sentence = tf_bn_ops::c_api::CheckDType(call->dtype, "dtype");
    if (sentence.empty()) sentence = tf_bn_ops::c_api::CheckView(call->view);
    if (sentence.empty()) *bytes = WorkspaceBytes(*call);
    return sentence;
  });
}

int tfbn_gpu_run(const tfbn_call* call, void* workspace,
                 int64_t workspace_bytes, void* cuda_stream, char* error,
                 size_t error_size) {
  return Report(error, error_size, [&]() -> std::string {
    const std::string sentence = tf_bn_ops::c_api::CheckCall(call);
    if (!sentence.empty()) return sentence;
    const int64_t needed = WorkspaceBytes(*call);
    if (workspace == nullptr || workspace_bytes < needed) {
      return "workspace must have the " + std::to_string(needed) +
             " bytes that tfbn_gpu_workspace returns";
    }
    if (reinterpret_cast<uintptr_t>(workspace) % sizeof(double) != 0) {
      return "workspace must be aligned to 8 bytes";
    }
    return SentenceOf(
        tf_bn_ops::RunOnGpu(tf_bn_ops::Call(*call), workspace, cuda_stream));
  });
}

int tfbn_gpu_gather_stats(const tfbn_gather_stats* args, void* cuda_stream,
                          char* error, size_t error_size) {
  return Report(error, error_size, [&]() -> std::string {
    const std::string sentence = tf_bn_ops::c_api::CheckGatherStats(args);
    return sentence.empty()
               ? SentenceOf(tf_bn_ops::GpuGatherStats(*args, cuda_stream))
               : sentence;
  });
}
