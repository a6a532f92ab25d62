// The attr activation_mode of ops with an activation.

#ifndef TF_BN_OPS_CC_OPS_ACTIVATION_MODE_H_
#define TF_BN_OPS_CC_OPS_ACTIVATION_MODE_H_

#include <string>

#include "absl/status/status.h"
#include "cc/core/formulas/batch_norm.h"
#include "cc/ops/errors.h"

namespace tf_bn_ops {

#define TFBN_ACTIVATION_MODE_ATTR \
  "activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'"

// Reads it from `context`, of a kernel or of a shape function.
template <typename Context>
absl::Status ReadActivationMode(Context* context, Activation* activation) {
  std::string mode;
  const absl::Status status = context->GetAttr("activation_mode", &mode);
  if (!status.ok()) return status;
  if (mode == "Identity") {
    *activation = Activation::kIdentity;
  } else if (mode == "Relu") {
    *activation = Activation::kRelu;
  } else if (mode == "Relu6") {
    *activation = Activation::kRelu6;
  } else {
    return InvalidArgument("Unsupported activation mode: ", mode);
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_ACTIVATION_MODE_H_
