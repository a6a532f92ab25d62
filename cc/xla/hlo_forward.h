// Batch normalization itself in XLA's own operations, for any device: the
// formula of cc/core/formulas/forward.h, in its notation. XLA fuses the
// passes with what surrounds them.
//
// The mean is measured from the first element of a channel, and the variance is
// a mean of squared distances from it, in float64, in a second pass over x: a
// constant channel has a variance of 0. As E[x^2] - E[x]^2, which XLA's own
// batch normalization computes in float32, the variance is lost where the mean
// is large, and y is NaN at a mean of 1e3 and a deviation of 1.

#ifndef TF_BN_OPS_CC_XLA_HLO_FORWARD_H_
#define TF_BN_OPS_CC_XLA_HLO_FORWARD_H_

#include <algorithm>
#include <limits>
#include <vector>

#include "cc/core/formulas/forward.h"
#include "cc/core/view.h"
#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// The attributes and inputs of cc/core's Call, inputs as values of the
// computation that is being built.
struct XlaBatchNormArgs : XlaArgs {
  using Call = BatchNormFormula;

  double exponential_avg_factor = 1;
  bool bessel_correction = true;
  bool saves_rstd = false;
  Activation activation = Activation::kIdentity;
  xla::XlaOp x, side_input;                  // The shape of x.
  xla::XlaOp scale, offset, mean, variance;  // [channels], mean and variance
                                             // if ReadsStatistics().

  // Whether the statistics are averages of those given and those of x.
  bool Averages() const { return is_training && exponential_avg_factor != 1; }
  bool ReadsStatistics() const { return !is_training || Averages(); }
};
// The same with a side input.
struct XlaBatchNormAddArgs : XlaBatchNormArgs {
  using Call = BatchNormAddFormula;
};

// The statistics that x is normalized with, in float64.
struct XlaStatistics {
  xla::XlaOp mean, variance;
};

inline XlaStatistics StatisticsOf(const XlaBatchNormArgs& args,
                                  const XlaChannels& channels) {
  const auto wide = XlaChannels::Wide;
  if (!args.is_training) return {wide(args.mean), wide(args.variance)};
  const xla::XlaOp first = wide(channels.First(args.x));
  // The distance from an infinity would be NaN.
  const xla::XlaOp center =
      xla::Select(xla::IsFinite(first), first, xla::ZerosLike(first));
  const xla::XlaOp xc = wide(args.x) - channels.Broadcast(center);
  const xla::XlaOp sum = channels.Sum(xc);
  const xla::XlaOp m = channels.Count(sum);
  const xla::XlaOp xmu = xc - channels.Broadcast(sum / m);
  // Not center + sum/m: XLA multiplies by 1/m instead, and where the two cancel
  // its rounding would be left.
  return {(center * m + sum) / m, channels.Mean(xmu * xmu)};
}

inline xla::XlaOp BuildY(const XlaBatchNormArgs& args,
                         const XlaChannels& channels, const XlaStatistics& of) {
  const xla::XlaOp f =
      XlaChannels::Wide(args.scale) * channels.Rstd(of.variance);
  xla::XlaOp y = channels.Minus(args.x, of.mean) * channels.Spread(f) +
                 channels.Spread(args.offset);
  if (args.side_input.valid()) y = y + channels.Narrow(args.side_input);
  if (args.activation != Activation::kIdentity) {
    y = xla::Max(y, xla::ZerosLike(y));
  }
  if (args.activation == Activation::kRelu6) {
    y = xla::Min(y, xla::ScalarLike(y, UpperBound(args.activation)));
  }
  return channels.Elements(y);
}

// batch_mean, batch_variance, saved_mean, saved_variance in training.
inline std::vector<xla::XlaOp> BuildTrainingStatistics(
    const XlaBatchNormArgs& args, const XlaChannels& channels,
    const XlaStatistics& of) {
  if (NumElements(args.view) == 0) {
    const xla::XlaOp zeros = xla::ZerosLike(args.scale);
    const xla::XlaOp nans =
        xla::FullLike(args.scale, std::numeric_limits<double>::quiet_NaN());
    return {nans, nans, zeros, zeros};
  }
  const auto average = [&](xla::XlaOp value, xla::XlaOp given) {
    if (!args.Averages()) return channels.Vector(value);
    const double f = args.exponential_avg_factor;
    const xla::XlaOp old = XlaChannels::Wide(given);
    return channels.Vector(xla::ScalarLike(old, 1 - f) * old +
                           xla::ScalarLike(value, f) * value);
  };
  const double m = static_cast<double>(ElementsPerChannel(args.view));
  const double bessel = args.bessel_correction ? m / std::max(m - 1, 1.0) : 1.0;
  return {average(of.mean, args.mean),
          average(of.variance * xla::ScalarLike(of.variance, bessel),
                  args.variance),
          channels.Vector(of.mean),
          channels.Vector(args.saves_rstd ? channels.Rstd(of.variance)
                                          : of.variance)};
}

// y, batch_mean, batch_variance, saved_mean, saved_variance
inline std::vector<xla::XlaOp> BuildHlo(const XlaBatchNormArgs& args) {
  const XlaChannels channels(args.x.builder(), args);
  const XlaStatistics of = StatisticsOf(args, channels);
  std::vector<xla::XlaOp> outputs =
      args.is_training ? BuildTrainingStatistics(args, channels, of)
                       : std::vector<xla::XlaOp>{args.mean, args.variance,
                                                 args.mean, args.variance};
  outputs.insert(outputs.begin(), BuildY(args, channels, of));
  return outputs;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_FORWARD_H_
