// clang-format off
// The op classes; tf_bn_ops/ops.h includes this.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#ifndef TF_BN_OPS_GENERATED_OP_CLASSES_H_
#define TF_BN_OPS_GENERATED_OP_CLASSES_H_

#include <string>
#include <string_view>
#include <vector>
#include "tensorflow/cc/framework/ops.h"

namespace tf_bn_ops {

namespace ops {
namespace internal {

template <typename A>
struct EpsilonAttr {
  // Added to the variance; a number, not a tensor.
  [[nodiscard]] A Epsilon(float x) const {
    return With<A>(*this, &EpsilonAttr::epsilon_, x);
  }
  float epsilon_ = 0.0001;
};
template <typename A>
struct EpsilonRestAttr {
  // Added to epsilon, in double: what float cannot hold of it.
  [[nodiscard]] A EpsilonRest(std::vector<float> x) const {
    return With<A>(*this, &EpsilonRestAttr::epsilon_rest_, x);
  }
  std::vector<float> epsilon_rest_ = {};
};
template <typename A>
struct ExponentialAvgFactorAttr {
  // In training, the weight f of this batch in the running statistics.
  [[nodiscard]] A ExponentialAvgFactor(float x) const {
    return With<A>(*this, &ExponentialAvgFactorAttr::exponential_avg_factor_, x);
  }
  float exponential_avg_factor_ = 1.0;
};
template <typename A>
struct NumSideInputsAttr {
  // How many side inputs the forward op has, 0 or 1.
  [[nodiscard]] A NumSideInputs(int x) const {
    return With<A>(*this, &NumSideInputsAttr::num_side_inputs_, x);
  }
  int num_side_inputs_ = 0;
};
template <typename A>
struct ActivationModeAttr {
  // The activation. Silu and HardSilu take no side input.
  [[nodiscard]] A ActivationMode(std::string_view x) const {
    return With<A>(*this, &ActivationModeAttr::activation_mode_, x);
  }
  std::string activation_mode_ = "Identity";
};
template <typename A>
struct DataFormatAttr {
  // Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
  [[nodiscard]] A DataFormat(std::string_view x) const {
    return With<A>(*this, &DataFormatAttr::data_format_, x);
  }
  std::string data_format_ = "NHWC";
};
template <typename A>
struct IsTrainingAttr {
  // Whether mean and variance are functions of x (training) or constants (frozen).
  [[nodiscard]] A IsTraining(bool x) const {
    return With<A>(*this, &IsTrainingAttr::is_training_, x);
  }
  bool is_training_ = true;
};
template <typename A>
struct BesselCorrectionAttr {
  // Whether batch_variance in training has the factor M/max(M - 1, 1), as in TensorFlow's ops, or
  // not, as in Keras.
  [[nodiscard]] A BesselCorrection(bool x) const {
    return With<A>(*this, &BesselCorrectionAttr::bessel_correction_, x);
  }
  bool bessel_correction_ = true;
};
template <typename A>
struct AxisAttr {
  // The dimension of the channels of x; from the end if negative.
  [[nodiscard]] A Axis(int x) const {
    return With<A>(*this, &AxisAttr::axis_, x);
  }
  int axis_ = -1;
};

}  // namespace internal

// The gradient of batch normalization with respect to x, from sums over all batches.
class TF_BN_OPS_EXPORT BatchNormBackwardElemt {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::NumSideInputsAttr<Attrs>,
      internal::ActivationModeAttr<Attrs>, internal::AxisAttr<Attrs> {};
  BatchNormBackwardElemt(const tensorflow::Scope& scope, tensorflow::Input y_backprop,
      tensorflow::Input x, tensorflow::Input scale, tensorflow::Input offset,
      tensorflow::Input mean, tensorflow::Input variance, tensorflow::Input sum_dy,
      tensorflow::Input sum_dy_xmu, tensorflow::Input count, tensorflow::InputList y,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs NumSideInputs(int x) { return Attrs().NumSideInputs(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;  // Gradient with respect to x.
  tensorflow::OutputList side_input_backprop;  // Gradient with respect to the side input.
};

// The sums of the gradient of batch normalization over one batch.
class TF_BN_OPS_EXPORT BatchNormBackwardReduce {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::ActivationModeAttr<Attrs>,
      internal::AxisAttr<Attrs> {};
  BatchNormBackwardReduce(const tensorflow::Scope& scope, tensorflow::Input y_backprop,
      tensorflow::Input x, tensorflow::Input scale, tensorflow::Input offset,
      tensorflow::Input mean, tensorflow::Input variance, tensorflow::InputList y,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  tensorflow::Operation operation;
  tensorflow::Output sum_dy;  // To be added up over all batches.
  tensorflow::Output sum_dy_xmu;  // To be added up over all batches.
  tensorflow::Output scale_backprop;  // Gradient of this batch with respect to scale.
  tensorflow::Output offset_backprop;  // Gradient of this batch with respect to offset.
};

// Batch normalization with given statistics, addition and activation.
class TF_BN_OPS_EXPORT BatchNormElemt {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::ActivationModeAttr<Attrs>,
      internal::AxisAttr<Attrs> {};
  BatchNormElemt(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
      tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
      tensorflow::InputList side_input, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;  // The normalized tensor.
};

// Statistics of a batch from those of its parts, by the formula of Chan et al.
class TF_BN_OPS_EXPORT BatchNormGatherStats {
 public:
  BatchNormGatherStats(const tensorflow::Scope& scope, tensorflow::Input counts,
      tensorflow::Input means, tensorflow::Input m2s);

  tensorflow::Operation operation;
  tensorflow::Output count;  // Elements of a channel in all parts.
  tensorflow::Output mean;  // Their mean.
  tensorflow::Output m2;  // Their sum of (x - mean)^2.
};

// Statistics of one batch, from which those of several batches are combined.
class TF_BN_OPS_EXPORT BatchNormStats {
 public:
  struct Attrs : internal::AxisAttr<Attrs> {};
  BatchNormStats(const tensorflow::Scope& scope, tensorflow::Input x, const Attrs& attrs = Attrs());
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  tensorflow::Operation operation;
  tensorflow::Output count;  // The number of elements of a channel.
  tensorflow::Output mean;  // The mean of each channel.
  tensorflow::Output m2;  // The sum of (x - mean)^2 of each channel.
};

// Gradient of batch normalization in training, nGraph's op of this name.
class TF_BN_OPS_EXPORT BatchNormTrainingBackprop {
 public:
  BatchNormTrainingBackprop(const tensorflow::Scope& scope, tensorflow::Input input,
      tensorflow::Input gamma, tensorflow::Input beta, tensorflow::Input mean,
      tensorflow::Input variance, tensorflow::Input normalized_delta, double epsilon);

  tensorflow::Operation operation;
  tensorflow::Output input_delta;  // Gradient with respect to input.
  tensorflow::Output gamma_delta;  // Gradient with respect to gamma.
  tensorflow::Output beta_delta;  // Gradient with respect to beta.
};

// Batch normalization, the twin of TensorFlow's FusedBatchNorm.
class TF_BN_OPS_EXPORT FusedBatchNorm {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::ExponentialAvgFactorAttr<Attrs>,
      internal::DataFormatAttr<Attrs>, internal::IsTrainingAttr<Attrs> {};
  FusedBatchNorm(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
      tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;  // The normalized tensor.
  tensorflow::Output batch_mean;  // The new running mean; NaN where x is empty.
  tensorflow::Output batch_variance;  // The new running variance; the same.
  tensorflow::Output reserve_space_1;  // The mean that x was normalized with, for the gradient; 0
      // where x is empty.
  tensorflow::Output reserve_space_2;  // The biased variance that x was normalized with, for the
      // gradient; on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
};

// Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.
class TF_BN_OPS_EXPORT FusedBatchNormEx {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::ExponentialAvgFactorAttr<Attrs>,
      internal::ActivationModeAttr<Attrs>, internal::DataFormatAttr<Attrs>,
      internal::IsTrainingAttr<Attrs>, internal::BesselCorrectionAttr<Attrs> {};
  FusedBatchNormEx(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
      tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
      tensorflow::InputList side_input, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }
  static Attrs BesselCorrection(bool x) { return Attrs().BesselCorrection(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;  // The normalized tensor.
  tensorflow::Output batch_mean;  // The new running mean; NaN where x is empty.
  tensorflow::Output batch_variance;  // The new running variance; the same.
  tensorflow::Output reserve_space_1;  // The mean that x was normalized with, for the gradient; 0
      // where x is empty.
  tensorflow::Output reserve_space_2;  // The biased variance that x was normalized with, for the
      // gradient; on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
  tensorflow::Output reserve_space_3;  // For the gradient: [5, C], what the other reserve spaces
      // lose of mean and variance by rounding, and the coefficients that y was computed with.
      // Frozen, without an activation, a placeholder.
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGrad.
class TF_BN_OPS_EXPORT FusedBatchNormGrad {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::DataFormatAttr<Attrs>,
      internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormGrad(const tensorflow::Scope& scope, tensorflow::Input y_backprop,
      tensorflow::Input x, tensorflow::Input scale, tensorflow::Input reserve_space_1,
      tensorflow::Input reserve_space_2, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;  // Gradient with respect to x.
  tensorflow::Output scale_backprop;  // Gradient with respect to scale.
  tensorflow::Output offset_backprop;  // Gradient with respect to the offset.
  tensorflow::Output reserve_space_3;  // A placeholder of the built-in op.
  tensorflow::Output reserve_space_4;  // A placeholder of the built-in op.
};

// Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.
class TF_BN_OPS_EXPORT FusedBatchNormGradEx {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::NumSideInputsAttr<Attrs>,
      internal::ActivationModeAttr<Attrs>, internal::DataFormatAttr<Attrs>,
      internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormGradEx(const tensorflow::Scope& scope, tensorflow::Input y_backprop,
      tensorflow::Input x, tensorflow::Input scale, tensorflow::Input reserve_space_1,
      tensorflow::Input reserve_space_2, tensorflow::Input reserve_space_3,
      tensorflow::Input offset, tensorflow::Input y, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs NumSideInputs(int x) { return Attrs().NumSideInputs(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;  // Gradient with respect to x.
  tensorflow::Output scale_backprop;  // Gradient with respect to scale.
  tensorflow::Output offset_backprop;  // Gradient with respect to the offset.
  tensorflow::Output reserve_space_4;  // A placeholder of the built-in op.
  tensorflow::Output reserve_space_5;  // A placeholder of the built-in op.
  tensorflow::OutputList side_input_backprop;  // Gradient with respect to the side input.
};

// Gradient of the gradient of batch normalization, as TensorFlow registers it.
class TF_BN_OPS_EXPORT FusedBatchNormGradGrad {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::EpsilonRestAttr<Attrs>,
      internal::DataFormatAttr<Attrs>, internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormGradGrad(const tensorflow::Scope& scope, tensorflow::Input x_backprop_grad,
      tensorflow::Input scale_backprop_grad, tensorflow::Input offset_backprop_grad,
      tensorflow::Input y_backprop, tensorflow::Input x, tensorflow::Input scale,
      tensorflow::Input reserve_space_1, tensorflow::Input reserve_space_2,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs EpsilonRest(std::vector<float> x) { return Attrs().EpsilonRest(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y_backprop_grad;  // Gradient with respect to y_backprop.
  tensorflow::Output x_grad;  // Gradient with respect to x.
  tensorflow::Output scale_grad;  // Gradient with respect to scale.
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV2.
class TF_BN_OPS_EXPORT FusedBatchNormGradV2 {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::DataFormatAttr<Attrs>,
      internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormGradV2(const tensorflow::Scope& scope, tensorflow::Input y_backprop,
      tensorflow::Input x, tensorflow::Input scale, tensorflow::Input reserve_space_1,
      tensorflow::Input reserve_space_2, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;  // Gradient with respect to x.
  tensorflow::Output scale_backprop;  // Gradient with respect to scale.
  tensorflow::Output offset_backprop;  // Gradient with respect to the offset.
  tensorflow::Output reserve_space_3;  // A placeholder of the built-in op.
  tensorflow::Output reserve_space_4;  // A placeholder of the built-in op.
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV3.
class TF_BN_OPS_EXPORT FusedBatchNormGradV3 {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::DataFormatAttr<Attrs>,
      internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormGradV3(const tensorflow::Scope& scope, tensorflow::Input y_backprop,
      tensorflow::Input x, tensorflow::Input scale, tensorflow::Input reserve_space_1,
      tensorflow::Input reserve_space_2, tensorflow::Input reserve_space_3,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;  // Gradient with respect to x.
  tensorflow::Output scale_backprop;  // Gradient with respect to scale.
  tensorflow::Output offset_backprop;  // Gradient with respect to the offset.
  tensorflow::Output reserve_space_4;  // A placeholder of the built-in op.
  tensorflow::Output reserve_space_5;  // A placeholder of the built-in op.
};

// Batch normalization, the twin of TensorFlow's FusedBatchNormV2.
class TF_BN_OPS_EXPORT FusedBatchNormV2 {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::ExponentialAvgFactorAttr<Attrs>,
      internal::DataFormatAttr<Attrs>, internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormV2(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
      tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;  // The normalized tensor.
  tensorflow::Output batch_mean;  // The new running mean; NaN where x is empty.
  tensorflow::Output batch_variance;  // The new running variance; the same.
  tensorflow::Output reserve_space_1;  // The mean that x was normalized with, for the gradient; 0
      // where x is empty.
  tensorflow::Output reserve_space_2;  // The biased variance that x was normalized with, for the
      // gradient; on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
};

// Batch normalization, the twin of TensorFlow's FusedBatchNormV3.
class TF_BN_OPS_EXPORT FusedBatchNormV3 {
 public:
  struct Attrs : internal::EpsilonAttr<Attrs>, internal::ExponentialAvgFactorAttr<Attrs>,
      internal::DataFormatAttr<Attrs>, internal::IsTrainingAttr<Attrs> {};
  FusedBatchNormV3(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
      tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;  // The normalized tensor.
  tensorflow::Output batch_mean;  // The new running mean; NaN where x is empty.
  tensorflow::Output batch_variance;  // The new running variance; the same.
  tensorflow::Output reserve_space_1;  // The mean that x was normalized with, for the gradient; 0
      // where x is empty.
  tensorflow::Output reserve_space_2;  // The biased variance that x was normalized with, for the
      // gradient; on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
  tensorflow::Output reserve_space_3;  // For the gradient, in training: [5, C], what the other
      // reserve spaces lose of mean and variance by rounding, and the coefficients that y was
      // computed with. Frozen, a placeholder.
};

}  // namespace ops

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_GENERATED_OP_CLASSES_H_
