// The C ABI of the CUDA backend: checks arguments and calls cc/cuda.

#include "cc/c_api/tf_bn_ops_cuda_c.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

#include "cc/c_api/alignment.h"
#include "cc/c_api/args.h"
#include "cc/c_api/formula_of.h"
#include "cc/core/formulas/all_formulas.h"
#include "cc/cuda/cuda_backend.h"

namespace {

using tf_bn_ops::DType;
using tf_bn_ops::View;
using tf_bn_ops::c_api::CheckAlignment;
using tf_bn_ops::c_api::Fail;

// Where a call runs.
struct Place {
  void* workspace;
  int64_t workspace_bytes;
  void* cuda_stream;
};

// One message, or empty.
std::string CheckPlace(const Place& place, int64_t needed) {
  if (place.workspace == nullptr || place.workspace_bytes < needed) {
    return "workspace must have the " + std::to_string(needed) +
           " bytes that tfbn_cuda_workspace returns";
  }
  if (reinterpret_cast<uintptr_t>(place.workspace) % sizeof(double) != 0) {
    return "workspace must be aligned to 8 bytes";
  }
  return "";
}

// The device memory that a call of any formula needs.
int64_t WorkspaceBytes(const View& view, DType dtype) {
  size_t bytes = 0;
#define X(unused, F, name) \
  bytes = std::max(bytes,  \
                   tf_bn_ops::CudaWorkspaceBytes<tf_bn_ops::F>(view, dtype));
  TFBN_FOR_EACH_FORMULA(X, )
#undef X
  return static_cast<int64_t>(bytes);
}

// Of what a launch returned.
int Report(int failed, char* error, size_t error_size) {
  if (failed == 0) return 0;
  return Fail(
      std::string("CUDA launch failed: ") + tf_bn_ops::CudaErrorMessage(failed),
      error, error_size);
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
  return Report(
      tf_bn_ops::CudaLaunch<Formula>(args, place.workspace, place.cuda_stream),
      error, error_size);
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

#define TFBN_DEFINE_CALL(name)                                            \
  int tfbn_cuda_##name(const tfbn_##name##_args* args, void* workspace,   \
                       int64_t workspace_bytes, void* cuda_stream,        \
                       char* error, size_t error_size) {                  \
    const Place place{workspace, workspace_bytes, cuda_stream};           \
    return tf_bn_ops::c_api::RunFormulaOf(args, [&](auto formula) {       \
      return Run<typename decltype(formula)::Formula>(args, place, error, \
                                                      error_size);        \
    });                                                                   \
  }
TFBN_FOR_EACH_C_CALL(TFBN_DEFINE_CALL)

int tfbn_cuda_batch_norm_gather_stats(
    const tfbn_batch_norm_gather_stats_args* args, void* cuda_stream,
    char* error, size_t error_size) {
  tf_bn_ops::GatherStatsArgs gather;
  std::string message = tf_bn_ops::c_api::ReadArgs(args, &gather);
  if (message.empty()) message = CheckAlignment(gather);
  if (!message.empty()) return Fail(message, error, error_size);
  return Report(tf_bn_ops::CudaGatherStats(gather, cuda_stream), error,
                error_size);
}
