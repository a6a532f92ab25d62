// The second-order gradient in XLA's own operations, for any device: the
// formulas of docs/math.md, in its notation and order, as in
// cc/client/gradients.cc and tf_bn_ops/_gradients.py. Sums are of centered
// values.

#ifndef TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_
#define TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_

#include <vector>

#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// The results of BuildSecondOrder, before they are rounded to their types.
inline std::vector<xla::XlaOp> TrainingHlo(const XlaCall& of,
                                           const XlaChannels& channels) {
  const auto wide = [](xla::XlaOp v) { return XlaChannels::Wide(v); };
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };
  const xla::XlaOp gs = wide(of[Role::kScaleBackpropGrad]);
  const xla::XlaOp gx_mean = channels.Mean(of[Role::kXBackpropGrad]);
  const xla::XlaOp dy_mean = channels.Mean(of[Role::kYBackprop]);
  const xla::XlaOp x_mean = channels.Mean(of[Role::kX]);
  const auto wide_centered = [&](xla::XlaOp v, xla::XlaOp mean) {
    return wide(v) - channels.Broadcast(mean);
  };
  const xla::XlaOp gx_wide = wide_centered(of[Role::kXBackpropGrad], gx_mean);
  const xla::XlaOp dy_wide = wide_centered(of[Role::kYBackprop], dy_mean);
  const xla::XlaOp x_wide = wide_centered(of[Role::kX], x_mean);
  const xla::XlaOp rstd = channels.Rstd(channels.Mean(x_wide * x_wide));
  const xla::XlaOp f = wide(of[Role::kScale]) * rstd;
  const xla::XlaOp a = rstd * channels.Mean(gx_wide * x_wide);
  const xla::XlaOp s = rstd * channels.Mean(dy_wide * x_wide);
  const xla::XlaOp b = channels.Mean(gx_wide * dy_wide);
  const xla::XlaOp p = gs - f * a;
  const xla::XlaOp m = channels.Count(b);
  const xla::XlaOp three = xla::ScalarLike(b, 3.0);
  const xla::XlaOp gx_centered =
      channels.Minus(of[Role::kXBackpropGrad], gx_mean);
  const xla::XlaOp dy_centered = channels.Minus(of[Role::kYBackprop], dy_mean);
  const xla::XlaOp xhat = channels.Minus(of[Role::kX], x_mean) * spread(rstd);
  const xla::XlaOp go = spread(wide(of[Role::kOffsetBackpropGrad]));
  return {spread(f) * gx_centered + spread(p) * xhat + go,
          spread(rstd * p) * dy_centered - spread(rstd * f * s) * gx_centered -
              spread(rstd * (gs * s + f * (b - three * a * s))) * xhat,
          rstd * m * (b - a * s)};
}

inline std::vector<xla::XlaOp> FrozenHlo(const XlaCall& of,
                                         const XlaChannels& channels) {
  const auto wide = [](xla::XlaOp v) { return XlaChannels::Wide(v); };
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };
  const xla::XlaOp gs = wide(of[Role::kScaleBackpropGrad]);
  const xla::XlaOp gx = channels.Narrow(of[Role::kXBackpropGrad]);
  const xla::XlaOp dy = channels.Narrow(of[Role::kYBackprop]);
  const xla::XlaOp rstd = channels.Rstd(wide(of[Role::kVariance]));
  const xla::XlaOp f = wide(of[Role::kScale]) * rstd;
  const xla::XlaOp xhat =
      (channels.Narrow(of[Role::kX]) - spread(of[Role::kMean])) * spread(rstd);
  const xla::XlaOp go = spread(wide(of[Role::kOffsetBackpropGrad]));
  return {spread(f) * gx + spread(gs) * xhat + go, spread(gs * rstd) * dy,
          rstd * channels.Sum(wide(gx) * wide(dy))};
}

inline void BuildSecondOrder(XlaCall* call) {
  XlaCall& out = *call;
  const XlaChannels channels(*call);
  const std::vector<xla::XlaOp> results = call->call.is_training
                                              ? TrainingHlo(*call, channels)
                                              : FrozenHlo(*call, channels);
  out[Role::kYBackpropGrad] = channels.Elements(results[0]);
  out[Role::kXGrad] = channels.Elements(results[1]);
  out[Role::kScaleGrad] = channels.VectorOfSum(results[2]);
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_
