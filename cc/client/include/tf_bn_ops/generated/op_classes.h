// clang-format off
// The op classes; tf_bn_ops/ops.h includes this.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#pragma once

namespace tf_bn_ops {

namespace ops {
namespace internal {

// Added to the variance; a number, not a tensor.
TF_BN_OPS_ATTR(Epsilon, epsilon, float, float, 0.0001)
// Added to epsilon, in double: what float cannot hold of it.
TF_BN_OPS_ATTR(EpsilonRest, epsilon_rest, std::vector<float>, std::vector<float>, {})
// In training, the weight f of this batch in the running statistics.
TF_BN_OPS_ATTR(ExponentialAvgFactor, exponential_avg_factor, float, float, 1.0)
// How many side inputs the forward op has, 0 or 1.
TF_BN_OPS_ATTR(NumSideInputs, num_side_inputs, int, int, 0)
// The activation.
TF_BN_OPS_ATTR(ActivationMode, activation_mode, std::string, std::string_view, "Identity")
// Of LeakyRelu, the slope below 0.
TF_BN_OPS_ATTR(LeakyreluAlpha, leakyrelu_alpha, float, float, 0.2)
// Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
TF_BN_OPS_ATTR(DataFormat, data_format, std::string, std::string_view, "NHWC")
// Whether mean and variance are functions of x (training) or constants (frozen).
TF_BN_OPS_ATTR(IsTraining, is_training, bool, bool, true)
// Whether batch_variance in training has the factor M/max(M - 1, 1), as in TensorFlow's ops,
// or not, as in Keras.
TF_BN_OPS_ATTR(BesselCorrection, bessel_correction, bool, bool, true)
// The dimension of the channels of x; from the end if negative.
TF_BN_OPS_ATTR(Axis, axis, int, int, -1)

}  // namespace internal

// The gradient of batch normalization with respect to x, from sums over all batches.
struct BatchNormBackwardElemt : internal::OpClass<BatchNormBackwardElemt, internal::Epsilon,
    internal::EpsilonRest, internal::NumSideInputs, internal::ActivationMode, internal::Axis> {
  BatchNormBackwardElemt(const Scope& scope, Input y_backprop, Input x, Input scale, Input offset,
      Input mean, Input variance, Input sum_dy, Input sum_dy_xmu, Input count, InputList y,
      const Attrs& attrs = Attrs())
      : OpClass(scope, "BatchNormBackwardElemt", {y_backprop, x, scale, offset, mean, variance,
          sum_dy, sum_dy_xmu, count}, attrs.Values(), &y) {}
  Output x_backprop = At(0); OutputList side_input_backprop = From(1);
};

// The sums of the gradient of batch normalization over one batch.
struct BatchNormBackwardReduce : internal::OpClass<BatchNormBackwardReduce, internal::Epsilon,
    internal::EpsilonRest, internal::ActivationMode, internal::Axis> {
  BatchNormBackwardReduce(const Scope& scope, Input y_backprop, Input x, Input scale, Input offset,
      Input mean, Input variance, InputList y, const Attrs& attrs = Attrs())
      : OpClass(scope, "BatchNormBackwardReduce", {y_backprop, x, scale, offset, mean, variance},
          attrs.Values(), &y) {}
  Output sum_dy = At(0), sum_dy_xmu = At(1), scale_backprop = At(2), offset_backprop = At(3);
};

// Batch normalization with given statistics, addition and activation.
struct BatchNormElemt : internal::OpClass<BatchNormElemt, internal::Epsilon, internal::EpsilonRest,
    internal::ActivationMode, internal::Axis> {
  BatchNormElemt(const Scope& scope, Input x, Input scale, Input offset, Input mean, Input variance,
      InputList side_input, const Attrs& attrs = Attrs())
      : OpClass(scope, "BatchNormElemt", {x, scale, offset, mean, variance}, attrs.Values(),
          &side_input) {}
  Output y = At(0);
};

// Statistics of a batch from those of its parts, by the formula of Chan et al.
struct BatchNormGatherStats : internal::OpClass<BatchNormGatherStats> {
  BatchNormGatherStats(const Scope& scope, Input counts, Input means, Input m2s)
      : OpClass(scope, "BatchNormGatherStats", {counts, means, m2s}, {}) {}
  Output count = At(0), mean = At(1), m2 = At(2);
};

// Statistics of one batch, from which those of several batches are combined.
struct BatchNormStats : internal::OpClass<BatchNormStats, internal::Axis> {
  BatchNormStats(const Scope& scope, Input x, const Attrs& attrs = Attrs())
      : OpClass(scope, "BatchNormStats", {x}, attrs.Values()) {}
  Output count = At(0), mean = At(1), m2 = At(2);
};

// Gradient of batch normalization in training, nGraph's op of this name.
struct BatchNormTrainingBackprop : internal::OpClass<BatchNormTrainingBackprop> {
  BatchNormTrainingBackprop(const Scope& scope, Input input, Input gamma, Input beta, Input mean,
      Input variance, Input normalized_delta, double epsilon)
      : OpClass(scope, "BatchNormTrainingBackprop", {input, gamma, beta, mean, variance,
          normalized_delta}, internal::EpsilonTensor(epsilon)) {}
  Output input_delta = At(0), gamma_delta = At(1), beta_delta = At(2);
};

// Batch normalization, the twin of TensorFlow's FusedBatchNorm.
struct FusedBatchNorm : internal::OpClass<FusedBatchNorm, internal::Epsilon,
    internal::ExponentialAvgFactor, internal::DataFormat, internal::IsTraining> {
  FusedBatchNorm(const Scope& scope, Input x, Input scale, Input offset, Input mean, Input variance,
      const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNorm", {x, scale, offset, mean, variance}, attrs.Values()) {}
  Output y = At(0), batch_mean = At(1), batch_variance = At(2), reserve_space_1 = At(3),
      reserve_space_2 = At(4);
};

// Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.
struct FusedBatchNormEx : internal::OpClass<FusedBatchNormEx, internal::Epsilon,
    internal::ExponentialAvgFactor, internal::ActivationMode, internal::LeakyreluAlpha,
    internal::DataFormat, internal::IsTraining, internal::BesselCorrection> {
  FusedBatchNormEx(const Scope& scope, Input x, Input scale, Input offset, Input mean,
      Input variance, InputList side_input, const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormEx", {x, scale, offset, mean, variance}, attrs.Values(),
          &side_input) {}
  Output y = At(0), batch_mean = At(1), batch_variance = At(2), reserve_space_1 = At(3),
      reserve_space_2 = At(4), reserve_space_3 = At(5);
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGrad.
struct FusedBatchNormGrad : internal::OpClass<FusedBatchNormGrad, internal::Epsilon,
    internal::DataFormat, internal::IsTraining> {
  FusedBatchNormGrad(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormGrad", {y_backprop, x, scale, reserve_space_1,
          reserve_space_2}, attrs.Values()) {}
  Output x_backprop = At(0), scale_backprop = At(1), offset_backprop = At(2),
      reserve_space_3 = At(3), reserve_space_4 = At(4);
};

// Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.
struct FusedBatchNormGradEx : internal::OpClass<FusedBatchNormGradEx, internal::Epsilon,
    internal::NumSideInputs, internal::ActivationMode, internal::LeakyreluAlpha,
    internal::DataFormat, internal::IsTraining> {
  FusedBatchNormGradEx(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, Input reserve_space_3, Input offset, Input y,
      const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormGradEx", {y_backprop, x, scale, reserve_space_1,
          reserve_space_2, reserve_space_3, offset, y}, attrs.Values()) {}
  Output x_backprop = At(0), scale_backprop = At(1), offset_backprop = At(2),
      reserve_space_4 = At(3), reserve_space_5 = At(4); OutputList side_input_backprop = From(5);
};

// Gradient of the gradient of batch normalization, as TensorFlow registers it.
struct FusedBatchNormGradGrad : internal::OpClass<FusedBatchNormGradGrad, internal::Epsilon,
    internal::EpsilonRest, internal::DataFormat, internal::IsTraining> {
  FusedBatchNormGradGrad(const Scope& scope, Input x_backprop_grad, Input scale_backprop_grad,
      Input offset_backprop_grad, Input y_backprop, Input x, Input scale, Input reserve_space_1,
      Input reserve_space_2, const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormGradGrad", {x_backprop_grad, scale_backprop_grad,
          offset_backprop_grad, y_backprop, x, scale, reserve_space_1, reserve_space_2},
          attrs.Values()) {}
  Output y_backprop_grad = At(0), x_grad = At(1), scale_grad = At(2);
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV2.
struct FusedBatchNormGradV2 : internal::OpClass<FusedBatchNormGradV2, internal::Epsilon,
    internal::DataFormat, internal::IsTraining> {
  FusedBatchNormGradV2(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormGradV2", {y_backprop, x, scale, reserve_space_1,
          reserve_space_2}, attrs.Values()) {}
  Output x_backprop = At(0), scale_backprop = At(1), offset_backprop = At(2),
      reserve_space_3 = At(3), reserve_space_4 = At(4);
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV3.
struct FusedBatchNormGradV3 : internal::OpClass<FusedBatchNormGradV3, internal::Epsilon,
    internal::DataFormat, internal::IsTraining> {
  FusedBatchNormGradV3(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, Input reserve_space_3, const Attrs&
      attrs = Attrs())
      : OpClass(scope, "FusedBatchNormGradV3", {y_backprop, x, scale, reserve_space_1,
          reserve_space_2, reserve_space_3}, attrs.Values()) {}
  Output x_backprop = At(0), scale_backprop = At(1), offset_backprop = At(2),
      reserve_space_4 = At(3), reserve_space_5 = At(4);
};

// Batch normalization, the twin of TensorFlow's FusedBatchNormV2.
struct FusedBatchNormV2 : internal::OpClass<FusedBatchNormV2, internal::Epsilon,
    internal::ExponentialAvgFactor, internal::DataFormat, internal::IsTraining> {
  FusedBatchNormV2(const Scope& scope, Input x, Input scale, Input offset, Input mean,
      Input variance, const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormV2", {x, scale, offset, mean, variance}, attrs.Values()) {}
  Output y = At(0), batch_mean = At(1), batch_variance = At(2), reserve_space_1 = At(3),
      reserve_space_2 = At(4);
};

// Batch normalization, the twin of TensorFlow's FusedBatchNormV3.
struct FusedBatchNormV3 : internal::OpClass<FusedBatchNormV3, internal::Epsilon,
    internal::ExponentialAvgFactor, internal::DataFormat, internal::IsTraining> {
  FusedBatchNormV3(const Scope& scope, Input x, Input scale, Input offset, Input mean,
      Input variance, const Attrs& attrs = Attrs())
      : OpClass(scope, "FusedBatchNormV3", {x, scale, offset, mean, variance}, attrs.Values()) {}
  Output y = At(0), batch_mean = At(1), batch_variance = At(2), reserve_space_1 = At(3),
      reserve_space_2 = At(4), reserve_space_3 = At(5);
};

}  // namespace ops

}  // namespace tf_bn_ops
