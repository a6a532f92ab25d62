// The attr activation_mode of ops with an activation.

#ifndef TF_BN_OPS_CC_OPS_ACTIVATION_MODE_H_
#define TF_BN_OPS_CC_OPS_ACTIVATION_MODE_H_

#include <string>

#include "absl/status/status.h"
#include "cc/core/formulas/forward.h"
#include "cc/ops/errors.h"

namespace tf_bn_ops {

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

// InvalidArgument where nothing says what an activation behind a side input
// passed: x does not.
inline absl::Status CheckMaskSource(int ys, int side_inputs,
                                    Activation activation) {
  if (side_inputs == 0 || ys > 0 || activation == Activation::kIdentity) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "y must be given where an activation follows a side input: x does not "
      "say which elements it passed");
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_ACTIVATION_MODE_H_
