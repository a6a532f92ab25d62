// OpDef and shape function of TfBnOps>BatchNormTrainingBackprop, nGraph's op of
// this name.

#include "cc/ops/batch_norm_training_backprop.h"

#include "cc/ops/shape_inference.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {
namespace {

absl::Status InferBatchNormTrainingBackpropShapes(
    tensorflow::shape_inference::InferenceContext* c) {
  return InferShapes(BatchNormTrainingBackpropSpec(), c);
}

}  // namespace

REGISTER_OP("TfBnOps>BatchNormTrainingBackprop")
    .Input("input: T")
    .Input("gamma: T")
    .Input("beta: T")
    .Input("mean: T")
    .Input("variance: T")
    .Input("normalized_delta: T")
    .Output("input_delta: T")
    .Output("gamma_delta: T")
    .Output("beta_delta: T")
    .Attr("T: " TFBN_ALL_TYPES)
    .Attr("epsilon: tensor")
    .SetShapeFn(InferBatchNormTrainingBackpropShapes)
    .Doc(R"doc(
Gradient of batch normalization in training, with the semantics of nGraph's op of this name.

The tensors are (N, C, ...) of any rank from 2 on. With M the number of elements of a channel,
rstd = 1/sqrt(variance + epsilon), and sums over all dimensions but C:

  beta_delta = sum(normalized_delta)
  gamma_delta = rstd * sum(normalized_delta * (input - mean))
  input_delta = gamma * rstd * (normalized_delta - beta_delta/M
                                - (input - mean) * rstd * gamma_delta/M)

Mean and variance are taken as given, and differentiated as functions of the input.

input: What was normalized, (N, C, ...).
gamma: Scale factors, (C).
beta: Offsets, (C). No result depends on them.
mean: Mean of each channel of input, (C).
variance: Biased variance of each channel of input, (C).
normalized_delta: Gradient with respect to the normalized output, of the shape of input.
input_delta: Gradient with respect to input.
gamma_delta: Gradient with respect to gamma.
beta_delta: Gradient with respect to beta.
epsilon: Added to the variance: a scalar of type double, so that it keeps its precision.
)doc");

}  // namespace tf_bn_ops
