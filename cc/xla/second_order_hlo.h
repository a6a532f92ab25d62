// The second-order gradient (cc/core/formulas/batch_norm_grad_grad.h) in XLA's
// own operations, for any device. Sums are in float64, of centred values.

#ifndef TF_BN_OPS_CC_XLA_SECOND_ORDER_HLO_H_
#define TF_BN_OPS_CC_XLA_SECOND_ORDER_HLO_H_

#include "cc/core/view.h"
#include "cc/xla/hlo.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/xla_data.pb.h"

namespace tf_bn_ops {

// What the kernel is given, as values of a computation that is being built.
struct XlaSecondOrderArgs {
  View view;            // Of x.
  int channel_dim = 0;  // The dimension of x that is view.channels.
  bool is_training = true;
  double epsilon = 0;

  xla::XlaOp x_backprop_grad, y_backprop, x;             // The shape of x.
  xla::XlaOp scale_backprop_grad, offset_backprop_grad;  // [channels]
  xla::XlaOp scale, mean, variance;                      // [channels]
  xla::Shape shape;                                      // Of x.
  xla::Shape stat_shape;                                 // Of scale.
};

struct XlaSecondOrder {
  xla::XlaOp y_backprop_grad, x_grad, scale_grad;
};

inline XlaSecondOrder BuildSecondOrderHlo(const XlaSecondOrderArgs& args) {
  const xla::PrimitiveType type = args.shape.element_type();
  const xla::PrimitiveType stat_type = args.stat_shape.element_type();
  const xla::PrimitiveType compute = type == xla::F64 ? xla::F64 : xla::F32;
  const XlaChannels channels(args.x.builder(), args.shape, args.channel_dim);
  const auto narrow = [&](xla::XlaOp v) {
    return xla::ConvertElementType(v, compute);
  };
  // A float64 vector, rounded, beside the elements.
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(narrow(v)); };
  const auto mean = [&](xla::XlaOp v) {
    const xla::XlaOp sum = channels.Sum(Wide(v));
    return sum / xla::ScalarLike(
                     sum, static_cast<double>(ElementsPerChannel(args.view)));
  };
  const auto less = [&](xla::XlaOp v, xla::XlaOp vector) {
    const XlaParts parts(vector, compute);
    return (narrow(v) - channels.Spread(parts.part)) -
           channels.Spread(parts.rest);
  };
  const auto rstd_of = [&](xla::XlaOp variance) {
    return xla::ScalarLike(variance, 1.0) /
           xla::Sqrt(variance + xla::ScalarLike(variance, args.epsilon));
  };

  const xla::XlaOp gs = Wide(args.scale_backprop_grad);
  const xla::XlaOp go = Wide(args.offset_backprop_grad);
  XlaSecondOrder result;
  if (args.is_training) {
    const xla::XlaOp gx_mean = mean(args.x_backprop_grad);
    const xla::XlaOp dy_mean = mean(args.y_backprop);
    const xla::XlaOp x_mean = mean(args.x);
    const auto covariance = [&](xla::XlaOp v, xla::XlaOp v_mean, xla::XlaOp w,
                                xla::XlaOp w_mean) {
      return mean((Wide(v) - channels.Spread(v_mean)) *
                  (Wide(w) - channels.Spread(w_mean)));
    };
    const xla::XlaOp rstd = rstd_of(covariance(args.x, x_mean, args.x, x_mean));
    const xla::XlaOp f = Wide(args.scale) * rstd;
    const xla::XlaOp a =
        rstd * covariance(args.x_backprop_grad, gx_mean, args.x, x_mean);
    const xla::XlaOp s =
        rstd * covariance(args.y_backprop, dy_mean, args.x, x_mean);
    const xla::XlaOp b =
        covariance(args.x_backprop_grad, gx_mean, args.y_backprop, dy_mean);
    const xla::XlaOp p = gs - f * a;
    const xla::XlaOp three = xla::ScalarLike(b, 3.0);
    const xla::XlaOp m =
        xla::ScalarLike(b, static_cast<double>(ElementsPerChannel(args.view)));
    const xla::XlaOp gx = less(args.x_backprop_grad, gx_mean);
    const xla::XlaOp dy = less(args.y_backprop, dy_mean);
    const xla::XlaOp xhat = less(args.x, x_mean) * spread(rstd);
    result.y_backprop_grad = spread(f) * gx + spread(p) * xhat + spread(go);
    result.x_grad = spread(rstd * p) * dy - spread(rstd * f * s) * gx -
                    spread(rstd * (gs * s + f * (b - three * a * s))) * xhat;
    result.scale_grad = rstd * m * (b - a * s);
  } else {
    const xla::XlaOp rstd = rstd_of(Wide(args.variance));
    const xla::XlaOp gx = narrow(args.x_backprop_grad);
    const xla::XlaOp dy = narrow(args.y_backprop);
    const xla::XlaOp xhat =
        (narrow(args.x) - spread(Wide(args.mean))) * spread(rstd);
    result.y_backprop_grad =
        spread(Wide(args.scale) * rstd) * gx + spread(gs) * xhat + spread(go);
    result.x_grad = spread(gs * rstd) * dy;
    result.scale_grad = rstd * channels.Sum(Wide(gx) * Wide(dy));
  }
  result.y_backprop_grad =
      xla::ConvertElementType(result.y_backprop_grad, type);
  result.x_grad = xla::ConvertElementType(result.x_grad, type);
  result.scale_grad =
      NumElements(args.view) == 0
          ? xla::ZerosLike(args.scale)  // Whatever rstd is.
          : xla::ConvertElementType(result.scale_grad, stat_type);
  return result;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_SECOND_ORDER_HLO_H_
