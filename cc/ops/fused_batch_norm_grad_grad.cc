// OpDef and shape function of TfBnOps>FusedBatchNormGradGrad, the gradient of
// the first-order ops.

#include "cc/ops/fused_batch_norm_grad_grad.h"

#include "cc/ops/shape_inference.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {
namespace {

absl::Status InferFusedBatchNormGradGradShapes(
    tensorflow::shape_inference::InferenceContext* c) {
  FusedBatchNormGradGradSpec spec;
  TF_RETURN_IF_ERROR(spec.ReadAttrs(c));
  return InferShapes(spec, c);
}

}  // namespace

REGISTER_OP("TfBnOps>FusedBatchNormGradGrad")
    .Input("x_backprop_grad: T")
    .Input("scale_backprop_grad: U")
    .Input("offset_backprop_grad: U")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: U")
    .Input("reserve_space_1: U")
    .Input("reserve_space_2: U")
    .Output("y_backprop_grad: T")
    .Output("x_grad: T")
    .Output("scale_grad: U")
    .Attr("T: " TFBN_ALL_TYPES)
    .Attr("U: " TFBN_ALL_TYPES)
    .Attr("epsilon: float = 0.0001")
    .Attr("epsilon_rest: list(float) = []")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(InferFusedBatchNormGradGradShapes)
    .Doc(R"doc(
Gradient of the gradient of batch normalization, as TensorFlow registers it for FusedBatchNormGrad.

With M the number of elements of a channel, mean and sum over all dimensions but the channel's, a
prime for "less its mean", and in training

  rstd = 1/sqrt(mean(x'^2) + epsilon), xhat = x' * rstd, f = scale * rstd,
  a = mean(x_backprop_grad * xhat), s = mean(y_backprop * xhat),
  b = mean(x_backprop_grad' * y_backprop'), p = scale_backprop_grad - f * a:

  y_backprop_grad = f * x_backprop_grad' + p * xhat + offset_backprop_grad
  x_grad = rstd * (p * y_backprop' - f * s * x_backprop_grad'
                   - (scale_backprop_grad * s + f * (b - 3 * a * s)) * xhat)
  scale_grad = rstd * M * (b - a * s)

Frozen, with mean and variance given:

  y_backprop_grad = f * x_backprop_grad + scale_backprop_grad * xhat + offset_backprop_grad
  x_grad = scale_backprop_grad * rstd * y_backprop
  scale_grad = rstd * sum(x_backprop_grad * y_backprop)

x_backprop_grad: Gradient with respect to the output x_backprop, of any rank from 2 on.
scale_backprop_grad: Gradient with respect to the output scale_backprop, 1-D.
offset_backprop_grad: Gradient with respect to the output offset_backprop, 1-D.
y_backprop: As given to the first-order op, of the shape of x_backprop_grad.
x: The same.
scale: The same, 1-D.
reserve_space_1: The mean, 1-D; read if not is_training.
reserve_space_2: The variance, 1-D; read if not is_training.
y_backprop_grad: Gradient with respect to y_backprop.
x_grad: Gradient with respect to x.
scale_grad: Gradient with respect to scale.
epsilon: Added to the variance.
epsilon_rest: Added to epsilon, in double: what float cannot hold of it.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1; of any rank.
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

}  // namespace tf_bn_ops
