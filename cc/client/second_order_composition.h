// FusedBatchNormGradGrad composed of TensorFlow's ops: for devices that the op
// has no kernel for, and to be differentiated, which gives its own gradient.

#ifndef TF_BN_OPS_CC_CLIENT_SECOND_ORDER_COMPOSITION_H_
#define TF_BN_OPS_CC_CLIENT_SECOND_ORDER_COMPOSITION_H_

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace tf_bn_ops {

// Inputs and attributes of the op; layouts of any rank.
struct SecondOrderInputs {
  tensorflow::Output x_backprop_grad, scale_backprop_grad, offset_backprop_grad;
  tensorflow::Output y_backprop, x, scale;
  tensorflow::Output mean, variance;  // read if frozen
  double epsilon = 0;
  bool channels_last = true;
  bool is_training = true;
};

struct SecondOrderOutputs {
  tensorflow::Output y_backprop_grad, x_grad, scale_grad;
};

// Half and bfloat16 are computed in float. Errors go to the scope's status.
SecondOrderOutputs ComposeSecondOrder(const tensorflow::Scope& scope,
                                      const SecondOrderInputs& inputs);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CLIENT_SECOND_ORDER_COMPOSITION_H_
