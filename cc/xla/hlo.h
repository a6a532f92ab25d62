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

// Between tensors of `shape` and vectors over their dimension `channel_dim`.
class XlaChannels {
 public:
  XlaChannels(xla::XlaBuilder* builder, const xla::Shape& shape,
              int channel_dim)
      : builder_(builder), shape_(shape), channel_dim_(channel_dim) {
    for (int i = 0; i < static_cast<int>(shape.dimensions().size()); ++i) {
      if (i != channel_dim) others_.push_back(i);
    }
  }
  // A vector over the channels, repeated for every element.
  xla::XlaOp Spread(xla::XlaOp v) const {
    return xla::BroadcastInDim(v, shape_.dimensions(), {channel_dim_});
  }
  // The sums of a float64 tensor over its channels.
  xla::XlaOp Sum(xla::XlaOp v) const {
    return xla::Reduce(v, xla::Zero(builder_, xla::F64),
                       xla::CreateScalarAddComputation(xla::F64, builder_),
                       others_);
  }

 private:
  xla::XlaBuilder* const builder_;
  const xla::Shape& shape_;
  const int channel_dim_;
  std::vector<int64_t> others_;
};

inline xla::XlaOp Wide(xla::XlaOp v) {
  return xla::ConvertElementType(v, xla::F64);
}

// A float64 vector as two of the type that elements are computed in, so that
// nothing is lost where it is subtracted and large; infinity minus infinity
// would be NaN.
struct XlaParts {
  XlaParts(xla::XlaOp v, xla::PrimitiveType compute)
      : part(xla::ConvertElementType(v, compute)),
        rest(xla::Select(xla::IsFinite(v),
                         xla::ConvertElementType(v - Wide(part), compute),
                         xla::ZerosLike(part))) {}
  const xla::XlaOp part, rest;
};

inline XlaBatchNormGrad BuildHlo(const XlaBatchNormGradArgs& args) {
  const xla::PrimitiveType type = args.shape.element_type();
  const xla::PrimitiveType stat_type = args.stat_shape.element_type();
  // Sums in double, x_backprop in float (double for float64).
  const xla::PrimitiveType compute = type == xla::F64 ? xla::F64 : xla::F32;
  const auto narrow = [&](xla::XlaOp v) {
    return xla::ConvertElementType(v, compute);
  };
  const XlaChannels channels(args.x.builder(), args.shape, args.channel_dim);
  const auto spread = [&](xla::XlaOp v) { return channels.Spread(v); };
  const auto sum = [&](xla::XlaOp v) { return channels.Sum(v); };

  const xla::XlaOp variance = Wide(args.variance);
  const xla::XlaOp rstd =
      args.variance_is_rstd
          ? variance
          : xla::ScalarLike(variance, 1.0) /
                xla::Sqrt(variance + xla::ScalarLike(variance, args.epsilon));
  const xla::XlaOp factor = Wide(args.scale) * rstd;
  const xla::XlaOp dy_sum = sum(Wide(args.y_backprop));
  const xla::XlaOp xmu_sum =
      sum(Wide(args.y_backprop) * (Wide(args.x) - spread(Wide(args.mean))));

  XlaBatchNormGrad result;
  result.offset_backprop = xla::ConvertElementType(dy_sum, stat_type);
  result.scale_backprop =
      NumElements(args.view) == 0
          ? xla::ZerosLike(args.scale)  // Whatever rstd is.
          : xla::ConvertElementType(rstd * xmu_sum, stat_type);

  xla::XlaOp centred = narrow(args.y_backprop);
  if (args.is_training) {
    const double m = static_cast<double>(ElementsPerChannel(args.view));
    const XlaParts dy_mean(dy_sum / xla::ScalarLike(dy_sum, m), compute);
    const xla::XlaOp slope = rstd * xmu_sum / xla::ScalarLike(xmu_sum, m);
    centred =
        ((centred - spread(dy_mean.part)) - spread(dy_mean.rest)) -
        ((narrow(args.x) - spread(narrow(args.mean))) * spread(narrow(rstd))) *
            spread(narrow(slope));
  }
  result.x_backprop =
      xla::ConvertElementType(spread(narrow(factor)) * centred, type);
  return result;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_H_
