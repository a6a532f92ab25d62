// clang-format off
// OpDefs. Those of V1 to V3 equal TensorFlow's own in all but name and documentation.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#include "cc/ops/first_copy.h"
#include "cc/ops/generated/op_signatures.h"
#include "cc/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace tf_bn_ops {

namespace {

bool RegisterOps() {
REGISTER_OP("TfBnOps>BatchNormBackwardElemt")
    .Input("y_backprop: T").Input("x: T").Input("scale: U").Input("offset: U")
    .Input("mean: double").Input("variance: double").Input("sum_dy: double")
    .Input("sum_dy_xmu: double").Input("count: double").Input("y: num_y * T")
    .Output("x_backprop: T").Output("side_input_backprop: num_side_inputs * T")
    .Attr("T: {half, bfloat16, float, double}").Attr("U: {float, double}")
    .Attr("epsilon: float = 0.0001").Attr("num_y: int >= 0 = 0")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'").Attr("axis: int = -1")
    .SetShapeFn(InferBackwardElemtShapes)
    .Doc(R"doc(
The gradient of batch normalization with respect to x, from sums over all batches.

With rstd = 1/sqrt(variance + epsilon), and y_backprop where the activation passes it, 0 elsewhere:

    x_backprop = scale * rstd * (y_backprop - sum_dy/count
                                 - (x - mean) * rstd^2 * sum_dy_xmu/count)
    side_input_backprop = y_backprop

y_backprop: Gradient with respect to y, of the shape of x.
x: As given to BatchNormElemt.
scale: As given to BatchNormElemt.
offset: As given to BatchNormElemt.
mean: As given to BatchNormElemt.
variance: As given to BatchNormElemt.
sum_dy: The sum over all batches of BatchNormBackwardReduce's output.
sum_dy_xmu: The same.
count: The number of elements of a channel in all batches.
y: At most one tensor, as given to BatchNormBackwardReduce.
x_backprop: Gradient with respect to x.
side_input_backprop: Gradient with respect to the side input.
epsilon: Added to the variance; a number, not a tensor.
num_y: How many y there are, 0 or 1.
num_side_inputs: How many side inputs the forward op has, 0 or 1.
activation_mode: The activation. Silu and HardSilu take no side input.
axis: The dimension of the channels of x; from the end if negative.
)doc");

REGISTER_OP("TfBnOps>BatchNormBackwardReduce")
    .Input("y_backprop: T").Input("x: T").Input("scale: U").Input("offset: U")
    .Input("mean: double").Input("variance: double").Input("y: num_y * T")
    .Output("sum_dy: double").Output("sum_dy_xmu: double").Output("scale_backprop: U")
    .Output("offset_backprop: U")
    .Attr("T: {half, bfloat16, float, double}").Attr("U: {float, double}")
    .Attr("epsilon: float = 0.0001").Attr("num_y: int >= 0 = 0")
    .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'").Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormBackwardReduce>)
    .Doc(R"doc(
The sums of the gradient of batch normalization over one batch.

With y_backprop where the activation passes it, and 0 elsewhere:

    sum_dy = sum(y_backprop)
    sum_dy_xmu = sum(y_backprop * (x - mean))
    scale_backprop = sum_dy_xmu / sqrt(variance + epsilon)
    offset_backprop = sum_dy

y_backprop: Gradient with respect to y, of the shape of x.
x: As given to BatchNormElemt.
scale: As given to BatchNormElemt.
offset: As given to BatchNormElemt.
mean: As given to BatchNormElemt.
variance: As given to BatchNormElemt.
y: At most one tensor, the output of BatchNormElemt: needed with an activation behind a side input.
  Without it the mask of the activation is computed from x.
sum_dy: To be added up over all batches.
sum_dy_xmu: To be added up over all batches.
scale_backprop: Gradient of this batch with respect to scale.
offset_backprop: Gradient of this batch with respect to offset.
epsilon: Added to the variance; a number, not a tensor.
num_y: How many y there are, 0 or 1.
activation_mode: The activation. Silu and HardSilu take no side input.
axis: The dimension of the channels of x; from the end if negative.
)doc");

REGISTER_OP("TfBnOps>BatchNormElemt")
    .Input("x: T").Input("scale: U").Input("offset: U").Input("mean: double")
    .Input("variance: double").Input("side_input: num_side_inputs * T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}").Attr("U: {float, double}")
    .Attr("epsilon: float = 0.0001").Attr("num_side_inputs: int >= 0 = 0")
    .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'").Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormElemt>)
    .Doc(R"doc(
Batch normalization with given statistics, addition and activation.

    y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)

x: A tensor of rank 1 or more.
scale: The scale factors (gamma).
offset: The offsets (beta).
mean: The mean of each channel.
variance: The biased variance of each channel.
side_input: At most one tensor of the shape of x, which is added before the activation.
y: The normalized tensor.
epsilon: Added to the variance; a number, not a tensor.
num_side_inputs: How many side inputs the forward op has, 0 or 1.
activation_mode: The activation. Silu and HardSilu take no side input.
axis: The dimension of the channels of x; from the end if negative.
)doc");

REGISTER_OP("TfBnOps>BatchNormGatherStats")
    .Input("counts: double").Input("means: double").Input("m2s: double")
    .Output("count: double").Output("mean: double").Output("m2: double")
    .SetShapeFn(InferGatherStatsShapes)
    .Doc(R"doc(
Statistics of a batch from those of its parts, by the formula of Chan et al.

Row by row in their order, so that results are bitwise identical on all replicas:

    delta = means[w] - mean
    mean += delta * (counts[w] / (count + counts[w]))
    m2   += m2s[w] + delta^2 * (count * counts[w] / (count + counts[w]))
    count += counts[w]

Rows with a count of 0 are ignored, whatever else they hold. Without any other row all results are
0. A count that is negative, infinite or NaN is an error.

counts: Elements of a channel in each part.
means: Their means.
m2s: Their sums of (x - mean)^2.
count: Elements of a channel in all parts.
mean: Their mean.
m2: Their sum of (x - mean)^2.
)doc");

REGISTER_OP("TfBnOps>BatchNormStats")
    .Input("x: T")
    .Output("count: double").Output("mean: double").Output("m2: double")
    .Attr("T: {half, bfloat16, float, double}").Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormStats>)
    .Doc(R"doc(
Statistics of one batch, from which those of several batches are combined.

One pass over x, with sums in float64 around an element of each channel: a mean of 1e5 beside a
deviation of 1 costs no digits. Without elements all results are 0.

x: A tensor of rank 1 or more.
count: The number of elements of a channel.
mean: The mean of each channel.
m2: The sum of (x - mean)^2 of each channel.
axis: The dimension of the channels of x; from the end if negative.
)doc");

REGISTER_OP("TfBnOps>BatchNormTrainingBackprop")
    .Input("input: T").Input("gamma: T").Input("beta: T").Input("mean: T").Input("variance: T")
    .Input("normalized_delta: T")
    .Output("input_delta: T").Output("gamma_delta: T").Output("beta_delta: T")
    .Attr("T: {half, bfloat16, float, double}").Attr("epsilon: tensor")
    .SetShapeFn(InferShapes<kBatchNormTrainingBackprop>)
    .Doc(R"doc(
Gradient of batch normalization in training, nGraph's op of this name.

The tensors are (N, C, ...) of any rank from 2 on. With M the number of elements of a channel, rstd
= 1/sqrt(variance + epsilon), and sums over all dimensions but C:

    beta_delta = sum(normalized_delta)
    gamma_delta = rstd * sum(normalized_delta * (input - mean))
    input_delta = gamma * rstd * (normalized_delta - beta_delta/M
                                  - (input - mean) * rstd * gamma_delta/M)

Mean and variance are taken as given, and differentiated as functions of the input.

input: What was normalized, (N, C, ...).
gamma: The scale factors.
beta: The offsets. No result depends on them.
mean: The mean of each channel of input.
variance: The biased variance of each channel of input.
normalized_delta: Gradient with respect to the normalized output, of the shape of input.
input_delta: Gradient with respect to input.
gamma_delta: Gradient with respect to gamma.
beta_delta: Gradient with respect to beta.
epsilon: Added to the variance; a number, not a tensor.
)doc");

REGISTER_OP("TfBnOps>FusedBatchNorm")
    .Input("x: T").Input("scale: T").Input("offset: T").Input("mean: T").Input("variance: T")
    .Output("y: T").Output("batch_mean: T").Output("batch_variance: T")
    .Output("reserve_space_1: T").Output("reserve_space_2: T")
    .Attr("T: {float}").Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0").Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormShape)
    .Doc(R"doc(
Batch normalization, the twin of TensorFlow's FusedBatchNorm.

FusedBatchNormV3 has the formulas; this version takes fewer types and ranks.

x: What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
scale: The scale factors (gamma).
offset: The offsets (beta).
mean: Frozen the mean of the population, in training the running mean; in training with a factor of
  1 it is not read, and may have any size.
variance: The same for the variance.
y: The normalized tensor.
batch_mean: The new running mean; NaN where x is empty.
batch_variance: The new running variance; the same.
reserve_space_1: The mean that x was normalized with, for the gradient; 0 where x is empty.
reserve_space_2: The biased variance that x was normalized with, for the gradient; on a GPU in
  training 1/sqrt(variance + epsilon), as cuDNN has it.
epsilon: Added to the variance; a number, not a tensor.
exponential_avg_factor: In training, the weight f of this batch in the running statistics.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormEx")
    .Input("x: T").Input("scale: U").Input("offset: U").Input("mean: U").Input("variance: U")
    .Input("side_input: num_side_inputs * T")
    .Output("y: T").Output("batch_mean: U").Output("batch_variance: U")
    .Output("reserve_space_1: U").Output("reserve_space_2: U").Output("reserve_space_3: U")
    .Attr("T: {half, bfloat16, float}").Attr("U: {float}").Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0").Attr("num_side_inputs: int >= 0 = 0")
    .Attr("activation_mode: {'Identity', 'Relu', 'Relu6', 'Silu', 'HardSilu'} = 'Identity'")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true").Attr("bessel_correction: bool = true")
    .SetShapeFn(InferExShapes)
    .Doc(R"doc(
Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.

With M the number of elements of a channel, sums over all dimensions but the channel's, and in
training mean = sum(x)/M, variance = sum((x - mean)^2)/M:

    y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)

With f = exponential_avg_factor, in training

    batch_mean = (1 - f) * (mean given) + f * mean
    batch_variance = (1 - f) * (variance given) + f * variance * M/max(M - 1, 1)

Frozen, mean and variance are those given, and so are batch_mean and batch_variance. All outputs are
written in either mode; y is accurate at any mean of x.

x: What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
scale: The scale factors (gamma).
offset: The offsets (beta).
mean: Frozen the mean of the population, in training the running mean; in training with a factor of
  1 it is not read, and may have any size.
variance: The same for the variance.
side_input: At most one tensor of the shape of x, which is added before the activation.
y: The normalized tensor.
batch_mean: The new running mean; NaN where x is empty.
batch_variance: The new running variance; the same.
reserve_space_1: The mean that x was normalized with, for the gradient; 0 where x is empty.
reserve_space_2: The biased variance that x was normalized with, for the gradient; on a GPU in
  training 1/sqrt(variance + epsilon), as cuDNN has it.
reserve_space_3: For the gradient: [5, C], what the other reserve spaces lose of mean and variance
  by rounding, and the coefficients that y was computed with. Frozen, without an activation, a
  placeholder.
epsilon: Added to the variance; a number, not a tensor.
exponential_avg_factor: In training, the weight f of this batch in the running statistics.
num_side_inputs: How many side inputs the forward op has, 0 or 1.
activation_mode: The activation. Silu and HardSilu take no side input.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
bessel_correction: Whether batch_variance in training has the factor M/max(M - 1, 1), as in
  TensorFlow's ops, or not, as in Keras.
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormGrad")
    .Input("y_backprop: T").Input("x: T").Input("scale: T").Input("reserve_space_1: T")
    .Input("reserve_space_2: T")
    .Output("x_backprop: T").Output("scale_backprop: T").Output("offset_backprop: T")
    .Output("reserve_space_3: T").Output("reserve_space_4: T")
    .Attr("T: {float}").Attr("epsilon: float = 0.0001")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'").Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormGradShape)
    .Doc(R"doc(
Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGrad.

FusedBatchNormGradV3 has the formulas; this version takes fewer types and ranks.

y_backprop: Gradient with respect to y, of the shape of x.
x: What was normalized, of the rank of data_format.
scale: The scale factors (gamma).
reserve_space_1: The mean: of the batch in training, of the population if frozen.
reserve_space_2: The biased variance: of the batch in training (on a GPU 1/sqrt(variance + epsilon),
  as the forward op returns it there), of the population if frozen.
x_backprop: Gradient with respect to x.
scale_backprop: Gradient with respect to scale.
offset_backprop: Gradient with respect to the offset.
reserve_space_3: A placeholder of the built-in op.
reserve_space_4: A placeholder of the built-in op.
epsilon: Added to the variance; a number, not a tensor.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormGradEx")
    .Input("y_backprop: T").Input("x: T").Input("scale: float").Input("reserve_space_1: U")
    .Input("reserve_space_2: U").Input("reserve_space_3: U").Input("offset: float").Input("y: T")
    .Output("x_backprop: T").Output("scale_backprop: U").Output("offset_backprop: U")
    .Output("reserve_space_4: U").Output("reserve_space_5: U")
    .Output("side_input_backprop: num_side_inputs * T")
    .Attr("T: {half, bfloat16, float}").Attr("U: {float}").Attr("epsilon: float = 0.0001")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr("activation_mode: {'Identity', 'Relu', 'Relu6', 'Silu', 'HardSilu'} = 'Identity'")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(InferGradExShapes)
    .Doc(R"doc(
Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.

FusedBatchNormGradV3 of y_backprop where the activation passes it, y > 0 (Relu) or 0 < y < 6
(Relu6), and of 0 elsewhere; of y_backprop times the derivative of Silu or HardSilu.

y_backprop: Gradient with respect to y, of the shape of x.
x: What was normalized, of the rank of data_format.
scale: The scale factors (gamma).
reserve_space_1: As FusedBatchNormEx returns it.
reserve_space_2: As FusedBatchNormEx returns it.
reserve_space_3: As FusedBatchNormEx returns it. Where it holds the coefficients that y was computed
  with, and offset is given, the mask is computed from x, and y is not read on CPUs.
offset: The offsets; read with an activation. An empty vector or reserve_space_3 in their place: the
  mask is computed from y, and Silu and HardSilu are refused.
y: The output y of FusedBatchNormEx; read with an activation. With Silu and HardSilu it is not read:
  any tensor of the shape of x.
x_backprop: Gradient with respect to x.
scale_backprop: Gradient with respect to scale.
offset_backprop: Gradient with respect to the offset.
reserve_space_4: A placeholder of the built-in op.
reserve_space_5: A placeholder of the built-in op.
side_input_backprop: Gradient with respect to the side input.
epsilon: Added to the variance; a number, not a tensor.
num_side_inputs: How many side inputs the forward op has, 0 or 1.
activation_mode: The activation. Silu and HardSilu take no side input.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormGradGrad")
    .Input("x_backprop_grad: T").Input("scale_backprop_grad: U").Input("offset_backprop_grad: U")
    .Input("y_backprop: T").Input("x: T").Input("scale: U").Input("reserve_space_1: U")
    .Input("reserve_space_2: U")
    .Output("y_backprop_grad: T").Output("x_grad: T").Output("scale_grad: U")
    .Attr("T: {half, bfloat16, float, double}").Attr("U: {half, bfloat16, float, double}")
    .Attr("epsilon: float = 0.0001").Attr("epsilon_rest: list(float) = []")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(InferShapes<kFusedBatchNormGradGrad>)
    .Doc(R"doc(
Gradient of the gradient of batch normalization, as TensorFlow registers it.

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

Tensors of the shape of x have any rank from 2 on; U is float32, or T. The reserve spaces get no
gradient.

x_backprop_grad: Gradient with respect to x_backprop.
scale_backprop_grad: Gradient with respect to scale_backprop.
offset_backprop_grad: Gradient with respect to offset_backprop.
y_backprop: As given to the first-order op.
x: As given to the first-order op.
scale: As given to the first-order op.
reserve_space_1: The mean; read if frozen.
reserve_space_2: The variance; read if frozen.
y_backprop_grad: Gradient with respect to y_backprop.
x_grad: Gradient with respect to x.
scale_grad: Gradient with respect to scale.
epsilon: Added to the variance; a number, not a tensor.
epsilon_rest: Added to epsilon, in double: what float cannot hold of it.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormGradV2")
    .Input("y_backprop: T").Input("x: T").Input("scale: float").Input("reserve_space_1: U")
    .Input("reserve_space_2: U")
    .Output("x_backprop: T").Output("scale_backprop: U").Output("offset_backprop: U")
    .Output("reserve_space_3: U").Output("reserve_space_4: U")
    .Attr("T: {half, bfloat16, float}").Attr("U: {float}").Attr("epsilon: float = 0.0001")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'").Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormGradShape)
    .Doc(R"doc(
Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV2.

FusedBatchNormGradV3 has the formulas; this version takes fewer types and ranks.

y_backprop: Gradient with respect to y, of the shape of x.
x: What was normalized, of the rank of data_format.
scale: The scale factors (gamma).
reserve_space_1: The mean: of the batch in training, of the population if frozen.
reserve_space_2: The biased variance: of the batch in training (on a GPU 1/sqrt(variance + epsilon),
  as the forward op returns it there), of the population if frozen.
x_backprop: Gradient with respect to x.
scale_backprop: Gradient with respect to scale.
offset_backprop: Gradient with respect to the offset.
reserve_space_3: A placeholder of the built-in op.
reserve_space_4: A placeholder of the built-in op.
epsilon: Added to the variance; a number, not a tensor.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormGradV3")
    .Input("y_backprop: T").Input("x: T").Input("scale: float").Input("reserve_space_1: U")
    .Input("reserve_space_2: U").Input("reserve_space_3: U")
    .Output("x_backprop: T").Output("scale_backprop: U").Output("offset_backprop: U")
    .Output("reserve_space_4: U").Output("reserve_space_5: U")
    .Attr("T: {half, bfloat16, float}").Attr("U: {float}").Attr("epsilon: float = 0.0001")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormGradShape)
    .Doc(R"doc(
Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV3.

With M the number of elements of a channel, rstd = 1/sqrt(variance + epsilon), mean and variance in
reserve_space_1 and 2, and sums over all dimensions but the channel's:

    offset_backprop = sum(y_backprop)
    scale_backprop = rstd * sum(y_backprop * (x - mean))
    training: x_backprop = scale * rstd * (y_backprop - offset_backprop/M
                           - (x - mean) * rstd * scale_backprop/M)
    frozen:   x_backprop = scale * rstd * y_backprop

Sums are accumulated in float64; x_backprop is computed in float32 and rounded to its type once.

y_backprop: Gradient with respect to y, of the shape of x.
x: What was normalized, of the rank of data_format.
scale: The scale factors (gamma).
reserve_space_1: The mean: of the batch in training, of the population if frozen.
reserve_space_2: The biased variance: of the batch in training (on a GPU 1/sqrt(variance + epsilon),
  as the forward op returns it there), of the population if frozen.
reserve_space_3: As the forward op of this library returns it with reserve_space_1: then mean and
  variance are right beyond what float32 holds. Of another op, in any shape, it is not read.
x_backprop: Gradient with respect to x.
scale_backprop: Gradient with respect to scale.
offset_backprop: Gradient with respect to the offset.
reserve_space_4: A placeholder of the built-in op.
reserve_space_5: A placeholder of the built-in op.
epsilon: Added to the variance; a number, not a tensor.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormV2")
    .Input("x: T").Input("scale: U").Input("offset: U").Input("mean: U").Input("variance: U")
    .Output("y: T").Output("batch_mean: U").Output("batch_variance: U")
    .Output("reserve_space_1: U").Output("reserve_space_2: U")
    .Attr("T: {half, bfloat16, float}").Attr("U: {float}").Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0").Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormShape)
    .Doc(R"doc(
Batch normalization, the twin of TensorFlow's FusedBatchNormV2.

FusedBatchNormV3 has the formulas; this version takes fewer types and ranks.

x: What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
scale: The scale factors (gamma).
offset: The offsets (beta).
mean: Frozen the mean of the population, in training the running mean; in training with a factor of
  1 it is not read, and may have any size.
variance: The same for the variance.
y: The normalized tensor.
batch_mean: The new running mean; NaN where x is empty.
batch_variance: The new running variance; the same.
reserve_space_1: The mean that x was normalized with, for the gradient; 0 where x is empty.
reserve_space_2: The biased variance that x was normalized with, for the gradient; on a GPU in
  training 1/sqrt(variance + epsilon), as cuDNN has it.
epsilon: Added to the variance; a number, not a tensor.
exponential_avg_factor: In training, the weight f of this batch in the running statistics.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

REGISTER_OP("TfBnOps>FusedBatchNormV3")
    .Input("x: T").Input("scale: U").Input("offset: U").Input("mean: U").Input("variance: U")
    .Output("y: T").Output("batch_mean: U").Output("batch_variance: U")
    .Output("reserve_space_1: U").Output("reserve_space_2: U").Output("reserve_space_3: U")
    .Attr("T: {half, bfloat16, float}").Attr("U: {bfloat16, float}")
    .Attr("epsilon: float = 0.0001").Attr("exponential_avg_factor: float = 1.0")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormV3Shape)
    .Doc(R"doc(
Batch normalization, the twin of TensorFlow's FusedBatchNormV3.

With M the number of elements of a channel, sums over all dimensions but the channel's, and in
training mean = sum(x)/M, variance = sum((x - mean)^2)/M:

    y = scale * (x - mean) / sqrt(variance + epsilon) + offset

With f = exponential_avg_factor, in training

    batch_mean = (1 - f) * (mean given) + f * mean
    batch_variance = (1 - f) * (variance given) + f * variance * M/max(M - 1, 1)

Frozen, mean and variance are those given, and so are batch_mean and batch_variance. All outputs are
written in either mode; y is accurate at any mean of x.

x: What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
scale: The scale factors (gamma).
offset: The offsets (beta).
mean: Frozen the mean of the population, in training the running mean; in training with a factor of
  1 it is not read, and may have any size.
variance: The same for the variance.
y: The normalized tensor.
batch_mean: The new running mean; NaN where x is empty.
batch_variance: The new running variance; the same.
reserve_space_1: The mean that x was normalized with, for the gradient; 0 where x is empty.
reserve_space_2: The biased variance that x was normalized with, for the gradient; on a GPU in
  training 1/sqrt(variance + epsilon), as cuDNN has it.
reserve_space_3: For the gradient, in training: [5, C], what the other reserve spaces lose of mean
  and variance by rounding, and the coefficients that y was computed with. Frozen, a placeholder.
epsilon: Added to the variance; a number, not a tensor.
exponential_avg_factor: In training, the weight f of this batch in the running statistics.
data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc");

return true;
}

[[maybe_unused]] const bool kRegistered = IsFirstCopy() && RegisterOps();

}  // namespace

}  // namespace tf_bn_ops
