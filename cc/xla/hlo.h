// The batch-norm gradient in XLA's own operations, for any device. Sums are in
// float64; XLA fuses the passes with what is around them.

#ifndef TF_BN_OPS_CC_XLA_HLO_H_
#define TF_BN_OPS_CC_XLA_HLO_H_

#include <cstdint>
#include <vector>

#include "cc/xla/batch_norm_grad.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/xla_data.pb.h"

namespace tf_bn_ops {

inline XlaBatchNormGrad BuildHlo(const XlaBatchNormGradArgs& args) {
  xla::XlaBuilder* const builder = args.x.builder();
  const xla::PrimitiveType type = args.shape.element_type();
  const xla::PrimitiveType stat_type = args.stat_shape.element_type();
  // Sums in double, x_backprop in float (double for float64).
  const xla::PrimitiveType compute = type == xla::F64 ? xla::F64 : xla::F32;
  const auto wide = [](xla::XlaOp v) {
    return xla::ConvertElementType(v, xla::F64);
  };
  const auto narrow = [&](xla::XlaOp v) {
    return xla::ConvertElementType(v, compute);
  };
  // A vector over the channels, repeated for every element of x.
  const auto spread = [&](xla::XlaOp v) {
    return xla::BroadcastInDim(v, args.shape.dimensions(), {args.channel_dim});
  };
  std::vector<int64_t> others;
  for (int i = 0; i < static_cast<int>(args.shape.dimensions().size()); ++i) {
    if (i != args.channel_dim) others.push_back(i);
  }
  const xla::XlaComputation add =
      xla::CreateScalarAddComputation(xla::F64, builder);
  const auto sum = [&](xla::XlaOp v) {
    return xla::Reduce(v, xla::Zero(builder, xla::F64), add, others);
  };

  const xla::XlaOp variance = wide(args.variance);
  const xla::XlaOp rstd =
      args.variance_is_rstd
          ? variance
          : xla::ScalarLike(variance, 1.0) /
                xla::Sqrt(variance + xla::ScalarLike(variance, args.epsilon));
  const xla::XlaOp factor = wide(args.scale) * rstd;
  const xla::XlaOp dy_sum = sum(wide(args.y_backprop));
  const xla::XlaOp xmu_sum =
      sum(wide(args.y_backprop) * (wide(args.x) - spread(wide(args.mean))));

  XlaBatchNormGrad result;
  result.offset_backprop = xla::ConvertElementType(dy_sum, stat_type);
  result.scale_backprop =
      NumElements(args.view) == 0
          ? xla::ZerosLike(args.scale)  // Whatever rstd is.
          : xla::ConvertElementType(rstd * xmu_sum, stat_type);

  xla::XlaOp centred = narrow(args.y_backprop);
  if (args.is_training) {
    const double m = static_cast<double>(ElementsPerChannel(args.view));
    // The mean of dy is subtracted in two parts, so that nothing is lost where
    // it is large; infinity minus infinity would be NaN.
    const xla::XlaOp dy_mean = dy_sum / xla::ScalarLike(dy_sum, m);
    const xla::XlaOp dy_mean_part = narrow(dy_mean);
    const xla::XlaOp dy_mean_rest = xla::Select(
        xla::IsFinite(dy_mean), narrow(dy_mean - wide(dy_mean_part)),
        xla::ZerosLike(dy_mean_part));
    const xla::XlaOp slope = rstd * xmu_sum / xla::ScalarLike(xmu_sum, m);
    centred =
        ((centred - spread(dy_mean_part)) - spread(dy_mean_rest)) -
        ((narrow(args.x) - spread(narrow(args.mean))) * spread(narrow(rstd))) *
            spread(narrow(slope));
  }
  result.x_backprop =
      xla::ConvertElementType(spread(narrow(factor)) * centred, type);
  return result;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_H_
