// The formulas of docs/math.md, in its notation and order, as in
// cc/xla/hlo_second_order.h and tf_bn_ops/_gradients.py.

#include "cc/client/second_order_composition.h"

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

  Term Elements(const Output& tensor) const {
    return {&scope_, Cast(tensor, type_)};
  }
  Term Vector(const Output& vector) const {
    return {&scope_,
            tf::ops::Reshape(scope_, Cast(vector, type_), channel_shape_)};
  }
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
  Term Centered(const Term& v) const { return v - Mean(v); }
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
  const Term gx = channels.Elements(inputs.x_backprop_grad);
  const Term dy = channels.Elements(inputs.y_backprop);
  const Term x = channels.Elements(inputs.x);
  const Term gs = channels.Vector(inputs.scale_backprop_grad);
  const Term go = channels.Vector(inputs.offset_backprop_grad);
  const Term scale = channels.Vector(inputs.scale);
  const auto mean = [&](const Term& v) { return channels.Mean(v); };

  if (inputs.is_training) {
    const Term gx_centered = channels.Centered(gx);
    const Term dy_centered = channels.Centered(dy);
    const Term x_centered = channels.Centered(x);
    const Term rstd = channels.Rstd(mean(x_centered * x_centered));
    const Term f = scale * rstd;
    const Term xhat = x_centered * rstd;
    const Term a = mean(gx_centered * xhat);
    const Term s = mean(dy_centered * xhat);
    const Term b = mean(gx_centered * dy_centered);
    const Term p = gs - f * a;
    const Term m = channels.Count();
    const Term three = channels.Constant(3);
    const Term y_backprop_grad = f * gx_centered + p * xhat + go;
    const Term x_grad = rstd * (p * dy_centered - f * s * gx_centered -
                                (gs * s + f * (b - three * a * s)) * xhat);
    const Term scale_grad = rstd * m * (b - a * s);
    return {channels.LikeX(y_backprop_grad), channels.LikeX(x_grad),
            channels.LikeScale(scale_grad)};
  }
  const Term rstd = channels.Rstd(channels.Vector(inputs.variance));
  const Term f = scale * rstd;
  const Term xhat = (x - channels.Vector(inputs.mean)) * rstd;
  const Term y_backprop_grad = f * gx + gs * xhat + go;
  const Term x_grad = gs * rstd * dy;
  const Term scale_grad = rstd * channels.Sum(gx * dy);
  return {channels.LikeX(y_backprop_grad), channels.LikeX(x_grad),
          channels.LikeScale(scale_grad)};
}

}  // namespace tf_bn_ops
