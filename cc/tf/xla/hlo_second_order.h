// The second-order gradient in XLA's own operations, for any device: the
// formulas of cc/core/formulas/second_order.h, in the notation and order of
// docs/math.md. Sums are of centered values in float64, elements in the type
// that they are computed in.

#pragma once

#include "cc/tf/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// A tensor less its mean: as sums read it, and as elements are computed from
// it.
struct XlaCentered {
  XlaCentered(const XlaCall& of, const XlaChannels& channels, Role role) {
    const xla::XlaOp mean = channels.Mean(of[role]);
    in_sums = channels.Wide(role) - channels.Broadcast(mean);
    in_elements = channels.Minus(of[role], mean);
  }
  xla::XlaOp in_sums, in_elements;
};

inline void BuildSecondOrder(XlaCall* call) {
  XlaCall& out = *call;
  const XlaChannels channels(*call);
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };
  const xla::XlaOp scale = channels.Wide(Role::kScale);
  const xla::XlaOp gs = channels.Wide(Role::kScaleBackpropGrad);
  const xla::XlaOp go = spread(channels.Wide(Role::kOffsetBackpropGrad));
  xla::XlaOp y_backprop_grad, x_grad, scale_grad;
  if (!call->call.is_training) {
    const auto tensor = [&](Role role) { return channels.Narrow(out[role]); };
    const xla::XlaOp rstd = channels.Rstd(channels.Wide(Role::kVariance));
    const xla::XlaOp xhat =
        (tensor(Role::kX) - spread(channels.Wide(Role::kMean))) * spread(rstd);
    y_backprop_grad = spread(scale * rstd) * tensor(Role::kXBackpropGrad) +
                      spread(gs) * xhat + go;
    x_grad = spread(gs * rstd) * tensor(Role::kYBackprop);
    scale_grad = rstd * channels.Sum(channels.Wide(Role::kXBackpropGrad) *
                                     channels.Wide(Role::kYBackprop));
  } else {
    const XlaCentered gx(*call, channels, Role::kXBackpropGrad);
    const XlaCentered dy(*call, channels, Role::kYBackprop);
    const XlaCentered x(*call, channels, Role::kX);
    const auto mean = [&](xla::XlaOp v) { return channels.Mean(v); };
    const xla::XlaOp rstd = channels.Rstd(mean(x.in_sums * x.in_sums));
    const xla::XlaOp f = scale * rstd;
    const xla::XlaOp a = rstd * mean(gx.in_sums * x.in_sums);
    const xla::XlaOp s = rstd * mean(dy.in_sums * x.in_sums);
    const xla::XlaOp b = mean(gx.in_sums * dy.in_sums);
    const xla::XlaOp p = gs - f * a;
    const xla::XlaOp three = xla::ScalarLike(scale, 3.0);
    const xla::XlaOp xhat = x.in_elements * spread(rstd);
    y_backprop_grad = spread(f) * gx.in_elements + spread(p) * xhat + go;
    x_grad = spread(rstd * p) * dy.in_elements -
             spread(rstd * f * s) * gx.in_elements -
             spread(rstd * (gs * s + f * (b - three * a * s))) * xhat;
    scale_grad = rstd * channels.Count(scale) * (b - a * s);
  }
  out[Role::kYBackpropGrad] = channels.Elements(y_backprop_grad);
  out[Role::kXGrad] = channels.Elements(x_grad);
  out[Role::kScaleGrad] = channels.VectorOfSum(scale_grad);
}

}  // namespace tf_bn_ops
