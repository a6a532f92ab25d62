// Checks and translates the arguments of the C ABI, and reports errors.

#ifndef TF_BN_OPS_CC_C_API_ARGS_H_
#define TF_BN_OPS_CC_C_API_ARGS_H_

#include <cstddef>
#include <string>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/formulas/batch_norm.h"
#include "cc/core/formulas/batch_norm_backward_elemt.h"
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_ex.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
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

// Translates `c_args`; BatchNormAddArgs are BatchNormArgs. One sentence, or
// empty when a backend can run `args`.
std::string ReadArgs(const tfbn_batch_norm_args* c_args, BatchNormArgs* args);

std::string ReadArgs(const tfbn_batch_norm_grad_args* c_args,
                     BatchNormGradArgs* args);

std::string ReadArgs(const tfbn_batch_norm_grad_ex_args* c_args,
                     BatchNormGradExArgs* args);

std::string ReadArgs(const tfbn_batch_norm_grad_grad_args* c_args,
                     BatchNormGradGradArgs* args);

// Those of the parts of a synchronised batch normalization.
std::string ReadArgs(const tfbn_batch_norm_stats_args* c_args,
                     BatchNormArgs* args);

// Reads no count: they may be in device memory.
std::string ReadArgs(const tfbn_batch_norm_gather_stats_args* c_args,
                     GatherStatsArgs* args);

std::string ReadArgs(const tfbn_batch_norm_elemt_args* c_args,
                     BatchNormArgs* args);

std::string ReadArgs(const tfbn_batch_norm_backward_reduce_args* c_args,
                     BatchNormGradExArgs* args);

std::string ReadArgs(const tfbn_batch_norm_backward_elemt_args* c_args,
                     BatchNormBackwardElemtArgs* args);

}  // namespace c_api
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_C_API_ARGS_H_
