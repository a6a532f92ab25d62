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
  template <typename F> void Visit(F&& f) const { f("epsilon", epsilon_); }
  float epsilon_ = 0.0001;
};
template <typename A>
struct EpsilonRestAttr {
  // Added to epsilon, in double: what float cannot hold of it.
  [[nodiscard]] A EpsilonRest(std::vector<float> x) const {
    return With<A>(*this, &EpsilonRestAttr::epsilon_rest_, x);
  }
  template <typename F> void Visit(F&& f) const { f("epsilon_rest", epsilon_rest_); }
  std::vector<float> epsilon_rest_ = {};
};
template <typename A>
struct ExponentialAvgFactorAttr {
  // In training, the weight f of this batch in the running statistics.
  [[nodiscard]] A ExponentialAvgFactor(float x) const {
    return With<A>(*this, &ExponentialAvgFactorAttr::exponential_avg_factor_, x);
  }
  template <typename F>
  void Visit(F&& f) const { f("exponential_avg_factor", exponential_avg_factor_); }
  float exponential_avg_factor_ = 1.0;
};
template <typename A>
struct NumSideInputsAttr {
  // How many side inputs the forward op has, 0 or 1.
  [[nodiscard]] A NumSideInputs(int x) const {
    return With<A>(*this, &NumSideInputsAttr::num_side_inputs_, x);
  }
  template <typename F> void Visit(F&& f) const { f("num_side_inputs", num_side_inputs_); }
  int num_side_inputs_ = 0;
};
template <typename A>
struct ActivationModeAttr {
  // The activation.
  [[nodiscard]] A ActivationMode(std::string_view x) const {
    return With<A>(*this, &ActivationModeAttr::activation_mode_, x);
  }
  template <typename F> void Visit(F&& f) const { f("activation_mode", activation_mode_); }
  std::string activation_mode_ = "Identity";
};
template <typename A>
struct DataFormatAttr {
  // Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).
  [[nodiscard]] A DataFormat(std::string_view x) const {
    return With<A>(*this, &DataFormatAttr::data_format_, x);
  }
  template <typename F> void Visit(F&& f) const { f("data_format", data_format_); }
  std::string data_format_ = "NHWC";
};
template <typename A>
struct IsTrainingAttr {
  // Whether mean and variance are functions of x (training) or constants (frozen).
  [[nodiscard]] A IsTraining(bool x) const {
    return With<A>(*this, &IsTrainingAttr::is_training_, x);
  }
  template <typename F> void Visit(F&& f) const { f("is_training", is_training_); }
  bool is_training_ = true;
};
template <typename A>
struct BesselCorrectionAttr {
  // Whether batch_variance in training has the factor M/max(M - 1, 1), as in TensorFlow's ops, or
  // not, as in Keras.
  [[nodiscard]] A BesselCorrection(bool x) const {
    return With<A>(*this, &BesselCorrectionAttr::bessel_correction_, x);
  }
  template <typename F> void Visit(F&& f) const { f("bessel_correction", bessel_correction_); }
  bool bessel_correction_ = true;
};
template <typename A>
struct AxisAttr {
  // The dimension of the channels of x; from the end if negative.
  [[nodiscard]] A Axis(int x) const {
    return With<A>(*this, &AxisAttr::axis_, x);
  }
  template <typename F> void Visit(F&& f) const { f("axis", axis_); }
  int axis_ = -1;
};

}  // namespace internal

// The gradient of batch normalization with respect to x, from sums over all batches.
class TF_BN_OPS_EXPORT BatchNormBackwardElemt {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::NumSideInputsAttr,
      internal::ActivationModeAttr, internal::AxisAttr> {};
  BatchNormBackwardElemt(const Scope& scope, Input y_backprop, Input x, Input scale, Input offset,
      Input mean, Input variance, Input sum_dy, Input sum_dy_xmu, Input count, InputList y,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs NumSideInputs(int x) { return Attrs().NumSideInputs(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  Operation operation;
  Output x_backprop;
  OutputList side_input_backprop;
};

// The sums of the gradient of batch normalization over one batch.
class TF_BN_OPS_EXPORT BatchNormBackwardReduce {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::ActivationModeAttr,
      internal::AxisAttr> {};
  BatchNormBackwardReduce(const Scope& scope, Input y_backprop, Input x, Input scale, Input offset,
      Input mean, Input variance, InputList y, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  Operation operation;
  Output sum_dy, sum_dy_xmu, scale_backprop, offset_backprop;
};

// Batch normalization with given statistics, addition and activation.
class TF_BN_OPS_EXPORT BatchNormElemt {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::ActivationModeAttr,
      internal::AxisAttr> {};
  BatchNormElemt(const Scope& scope, Input x, Input scale, Input offset, Input mean, Input variance,
      InputList side_input, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  Operation operation;
  Output y;
};

// Statistics of a batch from those of its parts, by the formula of Chan et al.
class TF_BN_OPS_EXPORT BatchNormGatherStats {
 public:
  BatchNormGatherStats(const Scope& scope, Input counts, Input means, Input m2s);

  Operation operation;
  Output count, mean, m2;
};

// Statistics of one batch, from which those of several batches are combined.
class TF_BN_OPS_EXPORT BatchNormStats {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::AxisAttr> {};
  BatchNormStats(const Scope& scope, Input x, const Attrs& attrs = Attrs());
  static Attrs Axis(int x) { return Attrs().Axis(x); }

  Operation operation;
  Output count, mean, m2;
};

// Gradient of batch normalization in training, nGraph's op of this name.
class TF_BN_OPS_EXPORT BatchNormTrainingBackprop {
 public:
  BatchNormTrainingBackprop(const Scope& scope, Input input, Input gamma, Input beta, Input mean,
      Input variance, Input normalized_delta, double epsilon);

  Operation operation;
  Output input_delta, gamma_delta, beta_delta;
};

// Batch normalization, the twin of TensorFlow's FusedBatchNorm.
class TF_BN_OPS_EXPORT FusedBatchNorm {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::ExponentialAvgFactorAttr,
      internal::DataFormatAttr, internal::IsTrainingAttr> {};
  FusedBatchNorm(const Scope& scope, Input x, Input scale, Input offset, Input mean, Input variance,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output y, batch_mean, batch_variance, reserve_space_1, reserve_space_2;
};

// Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.
class TF_BN_OPS_EXPORT FusedBatchNormEx {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::ExponentialAvgFactorAttr,
      internal::ActivationModeAttr, internal::DataFormatAttr, internal::IsTrainingAttr,
      internal::BesselCorrectionAttr> {};
  FusedBatchNormEx(const Scope& scope, Input x, Input scale, Input offset, Input mean,
      Input variance, InputList side_input, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }
  static Attrs BesselCorrection(bool x) { return Attrs().BesselCorrection(x); }

  Operation operation;
  Output y, batch_mean, batch_variance, reserve_space_1, reserve_space_2, reserve_space_3;
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGrad.
class TF_BN_OPS_EXPORT FusedBatchNormGrad {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::DataFormatAttr,
      internal::IsTrainingAttr> {};
  FusedBatchNormGrad(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output x_backprop, scale_backprop, offset_backprop, reserve_space_3, reserve_space_4;
};

// Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.
class TF_BN_OPS_EXPORT FusedBatchNormGradEx {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::NumSideInputsAttr,
      internal::ActivationModeAttr, internal::DataFormatAttr, internal::IsTrainingAttr> {};
  FusedBatchNormGradEx(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, Input reserve_space_3, Input offset, Input y,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs NumSideInputs(int x) { return Attrs().NumSideInputs(x); }
  static Attrs ActivationMode(std::string_view x) { return Attrs().ActivationMode(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output x_backprop, scale_backprop, offset_backprop, reserve_space_4, reserve_space_5;
  OutputList side_input_backprop;
};

// Gradient of the gradient of batch normalization, as TensorFlow registers it.
class TF_BN_OPS_EXPORT FusedBatchNormGradGrad {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::EpsilonRestAttr,
      internal::DataFormatAttr, internal::IsTrainingAttr> {};
  FusedBatchNormGradGrad(const Scope& scope, Input x_backprop_grad, Input scale_backprop_grad,
      Input offset_backprop_grad, Input y_backprop, Input x, Input scale, Input reserve_space_1,
      Input reserve_space_2, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs EpsilonRest(std::vector<float> x) { return Attrs().EpsilonRest(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output y_backprop_grad, x_grad, scale_grad;
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV2.
class TF_BN_OPS_EXPORT FusedBatchNormGradV2 {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::DataFormatAttr,
      internal::IsTrainingAttr> {};
  FusedBatchNormGradV2(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output x_backprop, scale_backprop, offset_backprop, reserve_space_3, reserve_space_4;
};

// Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV3.
class TF_BN_OPS_EXPORT FusedBatchNormGradV3 {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::DataFormatAttr,
      internal::IsTrainingAttr> {};
  FusedBatchNormGradV3(const Scope& scope, Input y_backprop, Input x, Input scale,
      Input reserve_space_1, Input reserve_space_2, Input reserve_space_3,
      const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output x_backprop, scale_backprop, offset_backprop, reserve_space_4, reserve_space_5;
};

// Batch normalization, the twin of TensorFlow's FusedBatchNormV2.
class TF_BN_OPS_EXPORT FusedBatchNormV2 {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::ExponentialAvgFactorAttr,
      internal::DataFormatAttr, internal::IsTrainingAttr> {};
  FusedBatchNormV2(const Scope& scope, Input x, Input scale, Input offset, Input mean,
      Input variance, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output y, batch_mean, batch_variance, reserve_space_1, reserve_space_2;
};

// Batch normalization, the twin of TensorFlow's FusedBatchNormV3.
class TF_BN_OPS_EXPORT FusedBatchNormV3 {
 public:
  struct Attrs : internal::AttrsOf<Attrs, internal::EpsilonAttr, internal::ExponentialAvgFactorAttr,
      internal::DataFormatAttr, internal::IsTrainingAttr> {};
  FusedBatchNormV3(const Scope& scope, Input x, Input scale, Input offset, Input mean,
      Input variance, const Attrs& attrs = Attrs());
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) { return Attrs().ExponentialAvgFactor(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  Operation operation;
  Output y, batch_mean, batch_variance, reserve_space_1, reserve_space_2, reserve_space_3;
};

}  // namespace ops

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_GENERATED_OP_CLASSES_H_
