// Checks and translates the arguments of the C ABI, and reports errors.

#ifndef TF_BN_OPS_CC_C_API_ARGS_H_
#define TF_BN_OPS_CC_C_API_ARGS_H_

#include <cstddef>
#include <string>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/call.h"
#include "cc/core/gather_stats.h"

namespace tf_bn_ops {
namespace c_api {

// Writes `message` to the caller's buffer, if there is one; returns 1.
int Fail(const std::string& message, char* error, size_t error_size);

bool IsDType(int32_t value);

// One sentence, or empty when the value is one of Activation.
std::string CheckActivation(int32_t value);

// One sentence, or empty when the view is usable.
std::string CheckView(const View& view);

// Reads the fields that all calls over a view have. One sentence, or empty.
template <typename CArgs>
std::string ReadView(const CArgs* c_args, Call* args) {
  if (c_args == nullptr) return "args must not be NULL";
  if (!IsDType(c_args->dtype)) {
    return "dtype must be one of the TFBN_ element types";
  }
  args->view = View{c_args->outer, c_args->channels, c_args->inner};
  args->dtype = static_cast<DType>(c_args->dtype);
  return CheckView(args->view);
}

// Reads those, and the fields of all calls that take statistics of x.
template <typename CArgs>
std::string ReadStatistics(const CArgs* c_args, Call* args) {
  const std::string error = ReadView(c_args, args);
  if (!error.empty()) return error;
  if (!IsDType(c_args->stat_dtype)) {
    return "stat_dtype must be one of the TFBN_ element types";
  }
  args->stat_dtype = static_cast<DType>(c_args->stat_dtype);
  args->epsilon = c_args->epsilon;
  args->x = c_args->x;
  args->scale = c_args->scale;
  args->mean = c_args->mean;
  args->variance = c_args->variance;
  return "";
}

// Translates `c_args`. One sentence, or empty when a backend can run `args`.
std::string ReadArgs(const tfbn_batch_norm_args* c_args, Call* args);

std::string ReadArgs(const tfbn_batch_norm_grad_args* c_args, Call* args);

std::string ReadArgs(const tfbn_batch_norm_grad_ex_args* c_args, Call* args);

std::string ReadArgs(const tfbn_batch_norm_grad_grad_args* c_args, Call* args);

// Those of the parts of a synchronised batch normalization.
std::string ReadArgs(const tfbn_batch_norm_stats_args* c_args, Call* args);

// Reads no count: they may be in device memory.
std::string ReadArgs(const tfbn_batch_norm_gather_stats_args* c_args,
                     GatherStatsArgs* args);

std::string ReadArgs(const tfbn_batch_norm_elemt_args* c_args, Call* args);

std::string ReadArgs(const tfbn_batch_norm_backward_reduce_args* c_args,
                     Call* args);

std::string ReadArgs(const tfbn_batch_norm_backward_elemt_args* c_args,
                     Call* args);

}  // namespace c_api
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_C_API_ARGS_H_
