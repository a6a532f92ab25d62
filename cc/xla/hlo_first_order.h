// The first-order gradient in XLA's own operations, for any device: the formula
// of docs/math.md, in its notation. XLA fuses the passes with what surrounds
// them.

#ifndef TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_H_
#define TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_H_

#include <vector>

#include "cc/core/formulas/gradient.h"
#include "cc/core/view.h"
#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// The inputs of cc/core's Call, as values of the computation that
// is being built.
struct XlaBatchNormGradArgs : XlaArgs {
  using Call = BatchNormGradFormula;

  bool variance_is_rstd = false;
  xla::XlaOp y_backprop, x;          // The shape of x.
  xla::XlaOp scale, mean, variance;  // [channels]
};

// Of a gradient, in float64: the sums over y_backprop and over y_backprop * (x
// - mean).
struct XlaGradSums {
  xla::XlaOp dy, dy_xmu;
};
inline XlaGradSums SumsOf(const XlaBatchNormGradArgs& args,
                          const XlaChannels& channels) {
  const auto wide = XlaChannels::Wide;
  return {channels.Sum(args.y_backprop),
          channels.Sum(wide(args.y_backprop) *
                       (wide(args.x) - channels.Broadcast(wide(args.mean))))};
}

inline xla::XlaOp RstdOf(const XlaBatchNormGradArgs& args,
                         const XlaChannels& channels) {
  const xla::XlaOp variance = XlaChannels::Wide(args.variance);
  return args.variance_is_rstd ? variance : channels.Rstd(variance);
}

inline xla::XlaOp BuildScaleBackprop(const XlaBatchNormGradArgs& args,
                                     const XlaChannels& channels,
                                     xla::XlaOp rstd, xla::XlaOp dy_xmu_sum) {
  return NumElements(args.view) == 0
             ? xla::ZerosLike(args.scale)  // Whatever rstd is.
             : channels.Vector(rstd * dy_xmu_sum);
}

// y_backprop without what mean and variance take from it: `xmu` is x - mean,
// the sums are over `count` elements.
inline xla::XlaOp BuildCentered(const XlaChannels& channels,
                                xla::XlaOp y_backprop, xla::XlaOp xmu,
                                xla::XlaOp rstd, const XlaGradSums& sums,
                                xla::XlaOp count) {
  const xla::XlaOp s = rstd * sums.dy_xmu / count;
  const xla::XlaOp xhat = xmu * channels.Spread(rstd);
  return channels.Minus(y_backprop, sums.dy / count) -
         xhat * channels.Spread(s);
}

// x_backprop, scale_backprop, offset_backprop
inline std::vector<xla::XlaOp> BuildHlo(const XlaBatchNormGradArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  const xla::XlaOp rstd = RstdOf(args, channels);
  const xla::XlaOp f = XlaChannels::Wide(args.scale) * rstd;
  const XlaGradSums sums = SumsOf(args, channels);
  xla::XlaOp dy_centered = channels.Narrow(args.y_backprop);
  if (args.is_training) {
    const xla::XlaOp xmu = channels.Narrow(args.x) - channels.Spread(args.mean);
    dy_centered = BuildCentered(channels, args.y_backprop, xmu, rstd, sums,
                                channels.Count(sums.dy));
  }
  return {channels.Elements(channels.Spread(f) * dy_centered),
          BuildScaleBackprop(args, channels, rstd, sums.dy_xmu),
          channels.Vector(sums.dy)};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_H_
