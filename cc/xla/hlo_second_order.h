// The second-order gradient in XLA's own operations, for any device: the
// formulas of docs/math.md, in its notation and order, as in
// cc/client/gradients.cc and tf_bn_ops/_gradients.py. Sums are of centered
// values.

#ifndef TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_
#define TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_

#include <vector>

#include "cc/core/view.h"
#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// The inputs of cc/core's Call, as values of the computation
// that is being built.
struct XlaBatchNormGradGradArgs : XlaArgs {
  xla::XlaOp x_backprop_grad, y_backprop, x;             // The shape of x.
  xla::XlaOp scale_backprop_grad, offset_backprop_grad;  // [channels]
  xla::XlaOp scale, mean, variance;                      // [channels]
};

// The results of BuildHlo, before they are rounded to their types.
inline std::vector<xla::XlaOp> TrainingHlo(const XlaBatchNormGradGradArgs& args,
                                           const XlaChannels& channels) {
  const auto wide = XlaChannels::Wide;
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };
  const xla::XlaOp gs = wide(args.scale_backprop_grad);
  const xla::XlaOp gx_mean = channels.Mean(args.x_backprop_grad);
  const xla::XlaOp dy_mean = channels.Mean(args.y_backprop);
  const xla::XlaOp x_mean = channels.Mean(args.x);
  const auto wide_centered = [&](xla::XlaOp v, xla::XlaOp mean) {
    return wide(v) - channels.Broadcast(mean);
  };
  const xla::XlaOp gx_wide = wide_centered(args.x_backprop_grad, gx_mean);
  const xla::XlaOp dy_wide = wide_centered(args.y_backprop, dy_mean);
  const xla::XlaOp x_wide = wide_centered(args.x, x_mean);
  const xla::XlaOp rstd = channels.Rstd(channels.Mean(x_wide * x_wide));
  const xla::XlaOp f = wide(args.scale) * rstd;
  const xla::XlaOp a = rstd * channels.Mean(gx_wide * x_wide);
  const xla::XlaOp s = rstd * channels.Mean(dy_wide * x_wide);
  const xla::XlaOp b = channels.Mean(gx_wide * dy_wide);
  const xla::XlaOp p = gs - f * a;
  const xla::XlaOp m = channels.Count(b);
  const xla::XlaOp three = xla::ScalarLike(b, 3.0);
  const xla::XlaOp gx_centered = channels.Minus(args.x_backprop_grad, gx_mean);
  const xla::XlaOp dy_centered = channels.Minus(args.y_backprop, dy_mean);
  const xla::XlaOp xhat = channels.Minus(args.x, x_mean) * spread(rstd);
  const xla::XlaOp go = spread(wide(args.offset_backprop_grad));
  return {spread(f) * gx_centered + spread(p) * xhat + go,
          spread(rstd * p) * dy_centered - spread(rstd * f * s) * gx_centered -
              spread(rstd * (gs * s + f * (b - three * a * s))) * xhat,
          rstd * m * (b - a * s)};
}

inline std::vector<xla::XlaOp> FrozenHlo(const XlaBatchNormGradGradArgs& args,
                                         const XlaChannels& channels) {
  const auto wide = XlaChannels::Wide;
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };
  const xla::XlaOp gs = wide(args.scale_backprop_grad);
  const xla::XlaOp gx = channels.Narrow(args.x_backprop_grad);
  const xla::XlaOp dy = channels.Narrow(args.y_backprop);
  const xla::XlaOp rstd = channels.Rstd(wide(args.variance));
  const xla::XlaOp f = wide(args.scale) * rstd;
  const xla::XlaOp xhat =
      (channels.Narrow(args.x) - spread(args.mean)) * spread(rstd);
  const xla::XlaOp go = spread(wide(args.offset_backprop_grad));
  return {spread(f) * gx + spread(gs) * xhat + go, spread(gs * rstd) * dy,
          rstd * channels.Sum(wide(gx) * wide(dy))};
}

// y_backprop_grad, x_grad, scale_grad
inline std::vector<xla::XlaOp> BuildHlo(const XlaBatchNormGradGradArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  std::vector<xla::XlaOp> results = args.is_training
                                        ? TrainingHlo(args, channels)
                                        : FrozenHlo(args, channels);
  results[0] = channels.Elements(results[0]);
  results[1] = channels.Elements(results[1]);
  results[2] = NumElements(args.view) == 0
                   ? xla::ZerosLike(args.scale)  // Whatever rstd is.
                   : channels.Vector(results[2]);
  return results;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_
