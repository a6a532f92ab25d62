// The parts of synchronised batch normalization in XLA's own operations, for
// any device: the formulas of hlo_forward.h and hlo_first_order.h, of which one
// pass is wanted.

#ifndef TF_BN_OPS_CC_XLA_HLO_SPLIT_H_
#define TF_BN_OPS_CC_XLA_HLO_SPLIT_H_

#include <cstdint>
#include <vector>

#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"
#include "cc/core/view.h"
#include "cc/xla/cpu_custom_call_lists.h"
#include "cc/xla/hlo_channels.h"
#include "cc/xla/hlo_first_order.h"
#include "cc/xla/hlo_first_order_ex.h"
#include "cc/xla/hlo_forward.h"
#include "xla/hlo/builder/lib/comparators.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {

// The arguments of each part, those of cc/core's formulas.
struct XlaStatsArgs : XlaBatchNormArgs {
  using Call = BatchNormStatsCall;
};
struct XlaElemtArgs : XlaBatchNormArgs {
  using Call = BatchNormElemtCall;
};
struct XlaElemtAddArgs : XlaBatchNormArgs {
  using Call = BatchNormElemtAddCall;
};
struct XlaBackwardReduceArgs : XlaBatchNormGradExArgs {
  using Call = BatchNormBackwardReduceCall;
};
struct XlaBackwardReduceFromYArgs : XlaBatchNormGradExArgs {
  using Call = BatchNormBackwardReduceFromYCall;
};
struct XlaBackwardElemtArgs : XlaBatchNormGradExArgs {
  xla::XlaOp count;               // A scalar.
  xla::XlaOp sum_dy, sum_dy_xmu;  // [channels]
};
struct XlaBackwardElemtFromXArgs : XlaBackwardElemtArgs {
  using Call = BatchNormBackwardElemtFromXFormula;
};
struct XlaBackwardElemtFromYArgs : XlaBackwardElemtArgs {
  using Call = BatchNormBackwardElemtFromYFormula;
};
struct XlaBackwardElemtAddArgs : XlaBackwardElemtArgs {
  using Call = BatchNormBackwardElemtAddFormula;
};

// mean, m2
inline std::vector<xla::XlaOp> BuildHlo(const XlaStatsArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  if (NumElements(args.view) == 0) {
    const xla::XlaOp zeros =
        xla::Zeros(args.x.builder(),
                   xla::ShapeUtil::MakeShape(xla::F64, {args.view.channels}));
    return {zeros, zeros};
  }
  const XlaStatistics of = StatisticsOf(args, channels);
  return {of.mean, of.variance * channels.Count(of.variance)};
}

inline xla::XlaOp BuildElemt(const XlaBatchNormArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  return BuildY(args, channels, StatisticsOf(args, channels));
}
// y
inline std::vector<xla::XlaOp> BuildHlo(const XlaElemtArgs& args) {
  return {BuildElemt(args)};
}
inline std::vector<xla::XlaOp> BuildHlo(const XlaElemtAddArgs& args) {
  return {BuildElemt(args)};
}

// `args` with a masked y_backprop; the mask is from x where there is no y.
inline XlaBatchNormGradArgs Masked(XlaBatchNormGradExArgs args) {
  if (!args.y.valid() && args.activation != Activation::kIdentity) {
    XlaBatchNormArgs forward;
    static_cast<XlaArgs&>(forward) = args;
    forward.is_training = false;
    forward.activation = args.activation;
    forward.x = args.x;
    forward.scale = args.scale;
    forward.offset = args.offset;
    forward.mean = args.mean;
    forward.variance = args.variance;
    args.y = BuildElemt(forward);
  }
  XlaBatchNormGradArgs masked = args;
  masked.y_backprop = BuildMasked(args);
  return masked;
}

// sum_dy, sum_dy_xmu, scale_backprop, offset_backprop
inline std::vector<xla::XlaOp> BuildBackwardReduce(
    const XlaBatchNormGradExArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  const XlaBatchNormGradArgs masked = Masked(args);
  const XlaGradSums sums = SumsOf(masked, channels);
  return {sums.dy, sums.dy_xmu,
          BuildScaleBackprop(masked, channels, RstdOf(masked, channels),
                             sums.dy_xmu),
          channels.Vector(sums.dy)};
}
inline std::vector<xla::XlaOp> BuildHlo(const XlaBackwardReduceArgs& args) {
  return BuildBackwardReduce(args);
}
inline std::vector<xla::XlaOp> BuildHlo(
    const XlaBackwardReduceFromYArgs& args) {
  return BuildBackwardReduce(args);
}

// x_backprop, side_input_backprop
inline std::vector<xla::XlaOp> BuildBackwardElemt(
    const XlaBackwardElemtArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  const XlaBatchNormGradArgs masked = Masked(args);
  const xla::XlaOp rstd = RstdOf(masked, channels);
  const xla::XlaOp f = XlaChannels::Wide(args.scale) * rstd;
  const xla::XlaOp count = xla::Broadcast(args.count, {args.view.channels});
  const xla::XlaOp centered = BuildCentered(
      channels, masked.y_backprop, channels.Minus(args.x, args.mean), rstd,
      {args.sum_dy, args.sum_dy_xmu}, count);
  return {channels.Elements(channels.Spread(f) * centered), masked.y_backprop};
}
inline std::vector<xla::XlaOp> BuildHlo(const XlaBackwardElemtFromXArgs& args) {
  return BuildBackwardElemt(args);
}
inline std::vector<xla::XlaOp> BuildHlo(const XlaBackwardElemtFromYArgs& args) {
  return BuildBackwardElemt(args);
}
inline std::vector<xla::XlaOp> BuildHlo(const XlaBackwardElemtAddArgs& args) {
  return BuildBackwardElemt(args);
}

// count, mean, m2 of `parts` rows: Chan's formula of cc/core/gather_stats.cc.
inline std::vector<xla::XlaOp> BuildGatherStats(xla::XlaOp counts,
                                                xla::XlaOp means,
                                                xla::XlaOp m2s, int64_t parts,
                                                int64_t channels) {
  xla::XlaBuilder* const builder = counts.builder();
  const xla::XlaOp zeros =
      xla::Zeros(builder, xla::ShapeUtil::MakeShape(xla::F64, {channels}));
  xla::XlaOp total = xla::Zero(builder, xla::F64), mean = zeros, m2 = zeros;
  for (int64_t part = 0; part < parts; ++part) {
    const auto row = [&](xla::XlaOp rows) {
      return xla::Reshape(
          xla::SliceInDim(rows, part, part + 1, /*stride=*/1, /*dimno=*/0),
          {channels});
    };
    const xla::XlaOp count = xla::Reshape(
        xla::SliceInDim(counts, part, part + 1, /*stride=*/1, /*dimno=*/0), {});
    const auto spread = [&](xla::XlaOp v) {
      return xla::Broadcast(v, {channels});
    };
    const xla::XlaOp share = count / (total + count);
    const xla::XlaOp delta = row(means) - mean;
    const xla::XlaOp has = spread(xla::Gt(count, xla::ZerosLike(count)));
    const xla::XlaOp first = spread(xla::Eq(total, xla::ZerosLike(total)));
    const xla::XlaOp new_mean =
        xla::Select(first, row(means), mean + delta * spread(share));
    const xla::XlaOp new_m2 = xla::Select(
        first, row(m2s), m2 + row(m2s) + delta * delta * spread(total * share));
    mean = xla::Select(has, new_mean, mean);
    m2 = xla::Select(has, new_m2, m2);
    total = xla::Select(xla::Gt(count, xla::ZerosLike(count)), total + count,
                        total);
  }
  return {total, mean, m2};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_SPLIT_H_
