// What is wrong with a call of the C ABI: the checks of every backend.

#ifndef TF_BN_OPS_CC_C_API_READ_CALL_H_
#define TF_BN_OPS_CC_C_API_READ_CALL_H_

#include <cstddef>
#include <string>

#include "cc/core/call.h"
#include "cc/core/view.h"

namespace tf_bn_ops {
namespace c_api {

// Writes `message` to the caller's buffer, if there is one; returns 1.
int Fail(const std::string& message, char* error, size_t error_size);

// Each returns one sentence, or empty where a backend can run what is given.
std::string CheckDType(DType dtype, const char* name);
std::string CheckView(const View& view);
// Sizes, types, arrays that the formula needs, their alignment.
std::string CheckCall(const tfbn_call* call);
// Reads no count: they may be in device memory.
std::string CheckGatherStats(const tfbn_gather_stats* args);

}  // namespace c_api
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_C_API_READ_CALL_H_
