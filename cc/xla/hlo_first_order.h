// The first-order gradient in XLA's own operations, for any device: the formula
// of docs/math.md, in its notation. XLA fuses the passes with what surrounds
// them.

#ifndef TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_H_
#define TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_H_

#include <vector>

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/view.h"
#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// The inputs of cc/core's BatchNormGradArgs, as values of the computation that
// is being built.
struct XlaBatchNormGradArgs : XlaArgs {
  using Formula = BatchNormGradFormula;

  bool variance_is_rstd = false;
  xla::XlaOp y_backprop, x;          // The shape of x.
  xla::XlaOp scale, mean, variance;  // [channels]
};

// x_backprop, scale_backprop, offset_backprop
inline std::vector<xla::XlaOp> BuildHlo(const XlaBatchNormGradArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  const auto wide = XlaChannels::Wide;
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };

  const xla::XlaOp variance = wide(args.variance);
  const xla::XlaOp rstd =
      args.variance_is_rstd ? variance : channels.Rstd(variance);
  const xla::XlaOp f = wide(args.scale) * rstd;
  const xla::XlaOp dy_sum = channels.Sum(args.y_backprop);
  const xla::XlaOp dy_xc_sum =
      channels.Sum(wide(args.y_backprop) *
                   (wide(args.x) - channels.Broadcast(wide(args.mean))));

  xla::XlaOp dy_centered = channels.Narrow(args.y_backprop);
  if (args.is_training) {
    const xla::XlaOp s = rstd * dy_xc_sum / channels.Count(dy_xc_sum);
    const xla::XlaOp xhat =
        (channels.Narrow(args.x) - spread(args.mean)) * spread(rstd);
    dy_centered =
        channels.Minus(args.y_backprop, dy_sum / channels.Count(dy_sum)) -
        xhat * spread(s);
  }
  return {channels.Elements(spread(f) * dy_centered),
          NumElements(args.view) == 0
              ? xla::ZerosLike(args.scale)  // Whatever rstd is.
              : channels.Vector(rstd * dy_xc_sum),
          channels.Vector(dy_sum)};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_H_
