// The ops of tf_bn_ops as C++ classes, for graphs that are built with
// tensorflow::Scope.
//
//   absl::Status status = tf_bn_ops::LoadOpLibrary();
//   namespace bn = tf_bn_ops::ops;      // or tensorflow::ops: same spelling
//   bn::FusedBatchNormV3 norm(
//       scope, x, scale, offset, mean, variance,
//       bn::FusedBatchNormV3::Epsilon(1e-3f).DataFormat("NCHW"));
//   ... norm.y, norm.batch_mean, norm.batch_variance ...
//   bn::FusedBatchNormGradV3 grad(
//       scope, y_backprop, x, scale, norm.reserve_space_1,
//       norm.reserve_space_2, norm.reserve_space_3,
//       bn::FusedBatchNormGradV3::Epsilon(1e-3f).DataFormat("NCHW"));
//   ... grad.x_backprop, grad.scale_backprop, grad.offset_backprop ...
//
// Each op has a gradient for tensorflow::AddSymbolicGradients; linking the
// client library registers them. That of the forward ops is
// FusedBatchNormGrad, V2 or V3; that of the first-order gradients is
// FusedBatchNormGradGrad.
//
// Formulas, with M the elements of a channel, rstd = 1/sqrt(variance + epsilon)
// and sums over all dimensions but the channel's:
//
//   training: mean = sum(x)/M, variance = sum((x - mean)^2)/M
//   frozen: mean and variance are the inputs
//   y = (x - mean) * rstd * scale + offset
//
//   offset_backprop = sum(y_backprop)
//   scale_backprop = rstd * sum(y_backprop * (x - mean))
//   training: x_backprop = scale * rstd * (y_backprop - offset_backprop/M
//                          - (x - mean) * rstd * scale_backprop/M)
//   frozen: x_backprop = scale * rstd * y_backprop

#ifndef TF_BN_OPS_OPS_H_
#define TF_BN_OPS_OPS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

#define TF_BN_OPS_EXPORT __attribute__((visibility("default")))

namespace tf_bn_ops {

// Registers the ops and their kernels with TensorFlow, in this process. To be
// called once before graphs with the ops are built or run; calling it again,
// from any thread, or after Python has loaded the ops, does nothing.
//
// `path` names libtf_bn_ops.so or the folder that holds it. Empty: what the
// environment variable TF_BN_OPS_LIBRARY names, else the library beside
// libtf_bn_ops_client.so.
//
// Errors, one sentence each: NotFound (no such file), FailedPrecondition (the
// file cannot be loaded, for instance because it was built for another
// TensorFlow).
TF_BN_OPS_EXPORT absl::Status LoadOpLibrary(const std::string& path = "");

namespace ops {

namespace internal {

// The optional attributes that all classes have; each derives its own `Attrs`
// from this.
template <typename Attrs>
struct CommonAttrs {
  // Added to the variance.
  [[nodiscard]] Attrs Epsilon(float x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.epsilon_ = x;
    return result;
  }

  // Where the channels are: "NHWC" or "NCHW", in V3 also "NDHWC" or "NCDHW".
  // The text is copied.
  [[nodiscard]] Attrs DataFormat(std::string_view x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.data_format_ = std::string(x);
    return result;
  }

  // Whether mean and variance are functions of x (true) or constants (false).
  [[nodiscard]] Attrs IsTraining(bool x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.is_training_ = x;
    return result;
  }

  float epsilon_ = 0.0001f;
  std::string data_format_ = "NHWC";
  bool is_training_ = true;
};

// Those of the forward classes.
template <typename Attrs>
struct ForwardAttrs : CommonAttrs<Attrs> {
  // In training batch_mean and batch_variance are (1 - x) * the given ones + x
  // * those of this batch. 1: the given ones are not read, of whatever size.
  [[nodiscard]] Attrs ExponentialAvgFactor(float x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.exponential_avg_factor_ = x;
    return result;
  }

  float exponential_avg_factor_ = 1.0f;
};

}  // namespace internal

// Errors of all constructors go to scope.status(): InvalidArgument for types,
// shapes and attributes that the op does not take, NotFound before
// LoadOpLibrary().

// Batch normalization: the twin of tensorflow::ops::FusedBatchNorm.
//
// x: float, 4-D; scale, offset, mean, variance: float, one element per channel.
// All outputs are written in training and frozen.
class TF_BN_OPS_EXPORT FusedBatchNorm {
 public:
  struct Attrs : internal::ForwardAttrs<Attrs> {};

  FusedBatchNorm(const tensorflow::Scope& scope, tensorflow::Input x,
                 tensorflow::Input scale, tensorflow::Input offset,
                 tensorflow::Input mean, tensorflow::Input variance);
  FusedBatchNorm(const tensorflow::Scope& scope, tensorflow::Input x,
                 tensorflow::Input scale, tensorflow::Input offset,
                 tensorflow::Input mean, tensorflow::Input variance,
                 const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) {
    return Attrs().ExponentialAvgFactor(x);
  }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;           // as x
  tensorflow::Output batch_mean;  // as scale; frozen: mean
  // As scale; in training with Bessel's correction, M/(M - 1); frozen: variance
  tensorflow::Output batch_variance;
  tensorflow::Output reserve_space_1;  // mean, for the gradient
  tensorflow::Output reserve_space_2;  // biased variance, for the gradient
};

// The twin of tensorflow::ops::FusedBatchNormV2: as FusedBatchNorm, but x and y
// may also be half or bfloat16.
class TF_BN_OPS_EXPORT FusedBatchNormV2 {
 public:
  struct Attrs : internal::ForwardAttrs<Attrs> {};

  FusedBatchNormV2(const tensorflow::Scope& scope, tensorflow::Input x,
                   tensorflow::Input scale, tensorflow::Input offset,
                   tensorflow::Input mean, tensorflow::Input variance);
  FusedBatchNormV2(const tensorflow::Scope& scope, tensorflow::Input x,
                   tensorflow::Input scale, tensorflow::Input offset,
                   tensorflow::Input mean, tensorflow::Input variance,
                   const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) {
    return Attrs().ExponentialAvgFactor(x);
  }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;
  tensorflow::Output batch_mean;
  tensorflow::Output batch_variance;
  tensorflow::Output reserve_space_1;
  tensorflow::Output reserve_space_2;
};

// The twin of tensorflow::ops::FusedBatchNormV3: as FusedBatchNormV2, but also
// in 5-D, and with one output more.
class TF_BN_OPS_EXPORT FusedBatchNormV3 {
 public:
  struct Attrs : internal::ForwardAttrs<Attrs> {};

  FusedBatchNormV3(const tensorflow::Scope& scope, tensorflow::Input x,
                   tensorflow::Input scale, tensorflow::Input offset,
                   tensorflow::Input mean, tensorflow::Input variance);
  FusedBatchNormV3(const tensorflow::Scope& scope, tensorflow::Input x,
                   tensorflow::Input scale, tensorflow::Input offset,
                   tensorflow::Input mean, tensorflow::Input variance,
                   const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) {
    return Attrs().ExponentialAvgFactor(x);
  }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;
  tensorflow::Output batch_mean;
  tensorflow::Output batch_variance;
  tensorflow::Output reserve_space_1;
  tensorflow::Output reserve_space_2;
  tensorflow::Output reserve_space_3;  // placeholder of shape [0]
};

// FusedBatchNormV3 with an addition and an activation in the same pass:
//
//   y = activation((x - mean) * rstd * scale + offset [+ side_input])
//
// side_input: no tensor, or one of type and shape of x.
class TF_BN_OPS_EXPORT FusedBatchNormEx {
 public:
  struct Attrs : internal::ForwardAttrs<Attrs> {
    // "Identity", "Relu" or "Relu6". The text is copied.
    [[nodiscard]] Attrs ActivationMode(std::string_view x) const {
      Attrs result = *this;
      result.activation_mode_ = std::string(x);
      return result;
    }

    // Whether batch_variance in training has Bessel's correction. Keras' moving
    // variance has not.
    [[nodiscard]] Attrs BesselCorrection(bool x) const {
      Attrs result = *this;
      result.bessel_correction_ = x;
      return result;
    }

    std::string activation_mode_ = "Identity";
    bool bessel_correction_ = true;
  };

  FusedBatchNormEx(const tensorflow::Scope& scope, tensorflow::Input x,
                   tensorflow::Input scale, tensorflow::Input offset,
                   tensorflow::Input mean, tensorflow::Input variance,
                   tensorflow::InputList side_input);
  FusedBatchNormEx(const tensorflow::Scope& scope, tensorflow::Input x,
                   tensorflow::Input scale, tensorflow::Input offset,
                   tensorflow::Input mean, tensorflow::Input variance,
                   tensorflow::InputList side_input, const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ExponentialAvgFactor(float x) {
    return Attrs().ExponentialAvgFactor(x);
  }
  static Attrs ActivationMode(std::string_view x) {
    return Attrs().ActivationMode(x);
  }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }
  static Attrs BesselCorrection(bool x) { return Attrs().BesselCorrection(x); }

  tensorflow::Operation operation;
  tensorflow::Output y;
  tensorflow::Output batch_mean;
  tensorflow::Output batch_variance;
  tensorflow::Output reserve_space_1;
  tensorflow::Output reserve_space_2;
  tensorflow::Output reserve_space_3;  // placeholder of shape [0]
};

// Gradient of batch normalization: the twin of
// tensorflow::ops::FusedBatchNormGrad.
//
// y_backprop, x: float, 4-D; scale, reserve_space_1 (mean), reserve_space_2
// (variance): float, one element per channel.
class TF_BN_OPS_EXPORT FusedBatchNormGrad {
 public:
  struct Attrs : internal::CommonAttrs<Attrs> {};

  FusedBatchNormGrad(const tensorflow::Scope& scope,
                     tensorflow::Input y_backprop, tensorflow::Input x,
                     tensorflow::Input scale, tensorflow::Input reserve_space_1,
                     tensorflow::Input reserve_space_2);
  FusedBatchNormGrad(const tensorflow::Scope& scope,
                     tensorflow::Input y_backprop, tensorflow::Input x,
                     tensorflow::Input scale, tensorflow::Input reserve_space_1,
                     tensorflow::Input reserve_space_2, const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;       // as x
  tensorflow::Output scale_backprop;   // as scale
  tensorflow::Output offset_backprop;  // as scale
  tensorflow::Output reserve_space_3;  // placeholder of shape [0]
  tensorflow::Output reserve_space_4;  // placeholder of shape [0]
};

// The twin of tensorflow::ops::FusedBatchNormGradV2: as FusedBatchNormGrad, but
// y_backprop, x and x_backprop may also be half or bfloat16.
class TF_BN_OPS_EXPORT FusedBatchNormGradV2 {
 public:
  struct Attrs : internal::CommonAttrs<Attrs> {};

  FusedBatchNormGradV2(const tensorflow::Scope& scope,
                       tensorflow::Input y_backprop, tensorflow::Input x,
                       tensorflow::Input scale,
                       tensorflow::Input reserve_space_1,
                       tensorflow::Input reserve_space_2);
  FusedBatchNormGradV2(const tensorflow::Scope& scope,
                       tensorflow::Input y_backprop, tensorflow::Input x,
                       tensorflow::Input scale,
                       tensorflow::Input reserve_space_1,
                       tensorflow::Input reserve_space_2, const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;
  tensorflow::Output scale_backprop;
  tensorflow::Output offset_backprop;
  tensorflow::Output reserve_space_3;
  tensorflow::Output reserve_space_4;
};

// The twin of tensorflow::ops::FusedBatchNormGradV3: as FusedBatchNormGradV2,
// but also in 5-D, and with reserve_space_3, which no kernel of this library
// reads.
class TF_BN_OPS_EXPORT FusedBatchNormGradV3 {
 public:
  struct Attrs : internal::CommonAttrs<Attrs> {};

  FusedBatchNormGradV3(const tensorflow::Scope& scope,
                       tensorflow::Input y_backprop, tensorflow::Input x,
                       tensorflow::Input scale,
                       tensorflow::Input reserve_space_1,
                       tensorflow::Input reserve_space_2,
                       tensorflow::Input reserve_space_3);
  FusedBatchNormGradV3(const tensorflow::Scope& scope,
                       tensorflow::Input y_backprop, tensorflow::Input x,
                       tensorflow::Input scale,
                       tensorflow::Input reserve_space_1,
                       tensorflow::Input reserve_space_2,
                       tensorflow::Input reserve_space_3, const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;
  tensorflow::Output scale_backprop;
  tensorflow::Output offset_backprop;
  tensorflow::Output reserve_space_4;
  tensorflow::Output reserve_space_5;
};

// nGraph's gradient of batch normalization in training. All tensors are of one
// type: half, bfloat16, float or double.
//
// input, normalized_delta: (N, C, ...), of any rank from 2 on; gamma, beta,
// mean, variance: (C). No result depends on beta.
class TF_BN_OPS_EXPORT BatchNormTrainingBackprop {
 public:
  BatchNormTrainingBackprop(const tensorflow::Scope& scope,
                            tensorflow::Input input, tensorflow::Input gamma,
                            tensorflow::Input beta, tensorflow::Input mean,
                            tensorflow::Input variance,
                            tensorflow::Input normalized_delta, double epsilon);

  tensorflow::Operation operation;
  tensorflow::Output input_delta;  // as input
  tensorflow::Output gamma_delta;  // (C)
  tensorflow::Output beta_delta;   // (C)
};

// The gradient of the other ops, in one kernel; the op's documentation has the
// formulas.
//
// x_backprop_grad, y_backprop, x: of one shape, of any rank from 2 on; half,
// bfloat16, float or double. The others: (C), float or of the type of x.
class TF_BN_OPS_EXPORT FusedBatchNormGradGrad {
 public:
  struct Attrs : internal::CommonAttrs<Attrs> {
    // Added to epsilon, in double: what float cannot hold of it.
    [[nodiscard]] Attrs EpsilonRest(std::vector<float> x) const {
      Attrs result = *this;
      result.epsilon_rest_ = std::move(x);
      return result;
    }

    std::vector<float> epsilon_rest_;
  };

  FusedBatchNormGradGrad(const tensorflow::Scope& scope,
                         tensorflow::Input x_backprop_grad,
                         tensorflow::Input scale_backprop_grad,
                         tensorflow::Input offset_backprop_grad,
                         tensorflow::Input y_backprop, tensorflow::Input x,
                         tensorflow::Input scale,
                         tensorflow::Input reserve_space_1,
                         tensorflow::Input reserve_space_2, const Attrs& attrs);

  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs DataFormat(std::string_view x) { return Attrs().DataFormat(x); }
  static Attrs IsTraining(bool x) { return Attrs().IsTraining(x); }

  tensorflow::Operation operation;
  tensorflow::Output y_backprop_grad;  // as x
  tensorflow::Output x_grad;           // as x
  tensorflow::Output scale_grad;       // as scale
};

}  // namespace ops
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_OPS_H_
