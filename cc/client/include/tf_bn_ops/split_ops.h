// The ops that synchronised batch normalization consists of, as C++ classes for
// graphs that are built with tensorflow::Scope; ops.h has LoadOpLibrary() and
// all other ops.
//
// Each is one pass over the batch of one replica. Statistics and sums are
// double; what travels between replicas is up to the caller:
//
//   namespace bn = tf_bn_ops::ops;
//   bn::BatchNormStats local(scope, x);
//   // counts, means, m2s: those of all replicas, stacked by rank.
//   bn::BatchNormGatherStats all(scope, counts, means, m2s);
//   // variance = all.m2 / all.count
//   bn::BatchNormElemt norm(scope, x, scale, offset, all.mean, variance);
//   ... norm.y ...
//
// BatchNormStats, BatchNormGatherStats and BatchNormElemt have gradients for
// tensorflow::AddSymbolicGradients. Errors of all constructors go to
// scope.status(), as those of ops.h do.

#ifndef TF_BN_OPS_SPLIT_OPS_H_
#define TF_BN_OPS_SPLIT_OPS_H_

#include <string>
#include <string_view>

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace ops {

namespace internal {

// The optional attributes of the classes below; each derives its own `Attrs`
// from this.
template <typename Attrs>
struct AxisAttrs {
  // The dimension of the channels; from the end if negative.
  [[nodiscard]] Attrs Axis(int x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.axis_ = x;
    return result;
  }

  int axis_ = -1;
};

template <typename Attrs>
struct SplitAttrs : AxisAttrs<Attrs> {
  // Added to the variance.
  [[nodiscard]] Attrs Epsilon(float x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.epsilon_ = x;
    return result;
  }

  // "Identity", "Relu" or "Relu6". The text is copied.
  [[nodiscard]] Attrs ActivationMode(std::string_view x) const {
    Attrs result = static_cast<const Attrs&>(*this);
    result.activation_mode_ = std::string(x);
    return result;
  }

  float epsilon_ = 0.0001f;
  std::string activation_mode_ = "Identity";
};

}  // namespace internal

// Statistics of one batch, zeros where it is empty.
//
// x: half, bfloat16, float or double, of rank 1 or more.
class TF_BN_OPS_EXPORT BatchNormStats {
 public:
  struct Attrs : internal::AxisAttrs<Attrs> {};

  BatchNormStats(const tensorflow::Scope& scope, tensorflow::Input x);
  BatchNormStats(const tensorflow::Scope& scope, tensorflow::Input x,
                 const Attrs& attrs);

  static Attrs Axis(int x) { return Attrs().Axis(x); }

  tensorflow::Operation operation;
  tensorflow::Output count;  // scalar, elements of a channel
  tensorflow::Output mean;   // (C)
  tensorflow::Output m2;     // (C), sum((x - mean)^2)
};

// Statistics of a batch from those of its parts, in the order of the rows; rows
// with a count of 0 are ignored.
//
// counts: double, (W); means, m2s: double, (W, C).
class TF_BN_OPS_EXPORT BatchNormGatherStats {
 public:
  BatchNormGatherStats(const tensorflow::Scope& scope, tensorflow::Input counts,
                       tensorflow::Input means, tensorflow::Input m2s);

  tensorflow::Operation operation;
  tensorflow::Output count;  // scalar
  tensorflow::Output mean;   // (C)
  tensorflow::Output m2;     // (C)
};

// y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset [+
// side_input])
//
// x and at most one side_input: as in BatchNormStats; scale, offset: float, or
// double (for double x they must be); mean, variance: double.
class TF_BN_OPS_EXPORT BatchNormElemt {
 public:
  struct Attrs : internal::SplitAttrs<Attrs> {};

  BatchNormElemt(const tensorflow::Scope& scope, tensorflow::Input x,
                 tensorflow::Input scale, tensorflow::Input offset,
                 tensorflow::Input mean, tensorflow::Input variance,
                 tensorflow::InputList side_input);
  BatchNormElemt(const tensorflow::Scope& scope, tensorflow::Input x,
                 tensorflow::Input scale, tensorflow::Input offset,
                 tensorflow::Input mean, tensorflow::Input variance,
                 tensorflow::InputList side_input, const Attrs& attrs);

  static Attrs Axis(int x) { return Attrs().Axis(x); }
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) {
    return Attrs().ActivationMode(x);
  }

  tensorflow::Operation operation;
  tensorflow::Output y;
};

// The sums of the gradient over one batch.
//
// The inputs of BatchNormElemt with y_backprop in front, and at most one y, its
// output, which is needed where an activation follows a side input.
class TF_BN_OPS_EXPORT BatchNormBackwardReduce {
 public:
  struct Attrs : internal::SplitAttrs<Attrs> {};

  BatchNormBackwardReduce(const tensorflow::Scope& scope,
                          tensorflow::Input y_backprop, tensorflow::Input x,
                          tensorflow::Input scale, tensorflow::Input offset,
                          tensorflow::Input mean, tensorflow::Input variance,
                          tensorflow::InputList y);
  BatchNormBackwardReduce(const tensorflow::Scope& scope,
                          tensorflow::Input y_backprop, tensorflow::Input x,
                          tensorflow::Input scale, tensorflow::Input offset,
                          tensorflow::Input mean, tensorflow::Input variance,
                          tensorflow::InputList y, const Attrs& attrs);

  static Attrs Axis(int x) { return Attrs().Axis(x); }
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) {
    return Attrs().ActivationMode(x);
  }

  tensorflow::Operation operation;
  tensorflow::Output sum_dy;           // (C), double
  tensorflow::Output sum_dy_xmu;       // (C), double
  tensorflow::Output scale_backprop;   // as scale, of this batch
  tensorflow::Output offset_backprop;  // as scale, of this batch
};

// The gradient with respect to x, from sums and count over all batches.
class TF_BN_OPS_EXPORT BatchNormBackwardElemt {
 public:
  struct Attrs : internal::SplitAttrs<Attrs> {
    // How many side inputs BatchNormElemt had, 0 or 1.
    [[nodiscard]] Attrs NumSideInputs(int x) const {
      Attrs result = *this;
      result.num_side_inputs_ = x;
      return result;
    }

    int num_side_inputs_ = 0;
  };

  BatchNormBackwardElemt(const tensorflow::Scope& scope,
                         tensorflow::Input y_backprop, tensorflow::Input x,
                         tensorflow::Input scale, tensorflow::Input offset,
                         tensorflow::Input mean, tensorflow::Input variance,
                         tensorflow::Input sum_dy, tensorflow::Input sum_dy_xmu,
                         tensorflow::Input count, tensorflow::InputList y);
  BatchNormBackwardElemt(const tensorflow::Scope& scope,
                         tensorflow::Input y_backprop, tensorflow::Input x,
                         tensorflow::Input scale, tensorflow::Input offset,
                         tensorflow::Input mean, tensorflow::Input variance,
                         tensorflow::Input sum_dy, tensorflow::Input sum_dy_xmu,
                         tensorflow::Input count, tensorflow::InputList y,
                         const Attrs& attrs);

  static Attrs Axis(int x) { return Attrs().Axis(x); }
  static Attrs Epsilon(float x) { return Attrs().Epsilon(x); }
  static Attrs ActivationMode(std::string_view x) {
    return Attrs().ActivationMode(x);
  }
  static Attrs NumSideInputs(int x) { return Attrs().NumSideInputs(x); }

  tensorflow::Operation operation;
  tensorflow::Output x_backprop;               // as x
  tensorflow::OutputList side_input_backprop;  // as x
};

}  // namespace ops
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_SPLIT_OPS_H_
