// The graph of cc/core/formulas/second_order_graph.h in ops of TensorFlow, all
// in the type that elements are computed in.

#include "cc/client/second_order_composition.h"

#include "cc/core/formulas/second_order_graph.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;
using tf::Output;
using tf::Scope;

// An Output with arithmetic operators.
struct Term {
  const Scope* scope;
  Output output;
};
Term operator+(const Term& a, const Term& b) {
  return {a.scope, tf::ops::AddV2(*a.scope, a.output, b.output)};
}
Term operator-(const Term& a, const Term& b) {
  return {a.scope, tf::ops::Sub(*a.scope, a.output, b.output)};
}
Term operator*(const Term& a, const Term& b) {
  return {a.scope, tf::ops::Multiply(*a.scope, a.output, b.output)};
}

// Terms of the shape of x, and of one element per channel in a shape that
// broadcasts to it; all in the type that they are computed in.
class Channels {
 public:
  Channels(const Scope& scope, const SecondOrderInputs& inputs)
      : scope_(scope),
        inputs_(inputs),
        type_(inputs.x.type() == tf::DT_DOUBLE ? tf::DT_DOUBLE : tf::DT_FLOAT) {
    const auto concat = [&scope](std::initializer_list<tf::Input> parts) {
      return tf::ops::Concat(scope, parts, 0);
    };
    const auto rank = tf::ops::Rank(scope, inputs.x);
    if (inputs.channels_last) {
      others_ = tf::ops::Range(scope, 0, tf::ops::Sub(scope, rank, 1), 1);
      channel_shape_ = tf::ops::Const(scope, {-1});
      return;
    }
    others_ =
        concat({tf::ops::Const(scope, {0}), tf::ops::Range(scope, 2, rank, 1)});
    const auto inner_rank =
        tf::ops::Sub(scope, rank, tf::ops::Const(scope, {2}));
    channel_shape_ = concat(
        {tf::ops::Const(scope, {1, -1}), tf::ops::Fill(scope, inner_rank, 1)});
  }

  GraphTensor<Term> Tensor(Role role) const {
    const Term v = Elements(role);
    return {v, v};
  }
  GraphTensor<Term> Centered(Role role) const {
    const Term v = Elements(role), centered = v - Mean(v);
    return {centered, centered};
  }
  Term Vector(Role role) const {
    return {&scope_, tf::ops::Reshape(scope_, Cast(InputOf(role), type_),
                                      channel_shape_)};
  }
  Term Spread(const Term& v) const { return v; }
  Term Constant(double value) const {
    return {&scope_, Cast(tf::ops::Const(scope_, value), type_)};
  }

  Term Sum(const Term& v) const {
    return {&scope_, tf::ops::Sum(scope_, v.output, others_,
                                  tf::ops::Sum::KeepDims(true))};
  }
  Term Mean(const Term& v) const {
    return {&scope_, tf::ops::Mean(scope_, v.output, others_,
                                   tf::ops::Mean::KeepDims(true))};
  }
  Term Rstd(const Term& variance) const {
    const Term sum = variance + Constant(inputs_.epsilon);
    return {&scope_, tf::ops::Rsqrt(scope_, sum.output)};
  }
  // M, the number of elements of a channel.
  Term Count() const {
    const auto size = [this](const Output& tensor) {
      return Cast(
          tf::ops::Size(scope_, tensor, tf::ops::Size::OutType(tf::DT_INT64)),
          tf::DT_DOUBLE);
    };
    return {&scope_,
            Cast(tf::ops::Div(scope_, size(inputs_.x), size(inputs_.scale)),
                 type_)};
  }

  // Results in shape and type of the op's outputs.
  Output LikeX(const Term& v) const { return Cast(v.output, inputs_.x.type()); }
  Output LikeScale(const Term& v) const {
    return Cast(tf::ops::Reshape(scope_, v.output, {-1}), inputs_.scale.type());
  }

 private:
  const Output& InputOf(Role role) const {
    switch (role) {
      case Role::kXBackpropGrad:
        return inputs_.x_backprop_grad;
      case Role::kYBackprop:
        return inputs_.y_backprop;
      case Role::kX:
        return inputs_.x;
      case Role::kScaleBackpropGrad:
        return inputs_.scale_backprop_grad;
      case Role::kOffsetBackpropGrad:
        return inputs_.offset_backprop_grad;
      case Role::kMean:
        return inputs_.mean;
      case Role::kVariance:
        return inputs_.variance;
      default:
        return inputs_.scale;
    }
  }
  Term Elements(Role role) const {
    return {&scope_, Cast(InputOf(role), type_)};
  }
  Output Cast(const Output& value, tf::DataType to) const {
    if (value.type() == to) return value;
    return tf::ops::Cast(scope_, value, to);
  }

  const Scope& scope_;
  const SecondOrderInputs& inputs_;
  const tf::DataType type_;
  Output others_;         // All dimensions but the channels'.
  Output channel_shape_;  // [1, -1, 1, ...], or [-1] if they are the last.
};

}  // namespace

SecondOrderOutputs ComposeSecondOrder(const Scope& scope,
                                      const SecondOrderInputs& inputs) {
  const Channels channels(scope, inputs);
  const SecondOrderResults<Term> results =
      BuildSecondOrderGraph<Term>(channels, inputs.is_training);
  return {channels.LikeX(results.y_backprop_grad),
          channels.LikeX(results.x_grad),
          channels.LikeScale(results.scale_grad)};
}

}  // namespace tf_bn_ops
