// One-sentence errors of shape functions and op kernels.

#ifndef TF_BN_OPS_CC_OPS_ERRORS_H_
#define TF_BN_OPS_CC_OPS_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tf_bn_ops {

// The parts, strings and numbers, in a row. (TensorFlow's function of this name
// is deprecated in its newer versions.)
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_ERRORS_H_
