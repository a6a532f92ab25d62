// Batch normalization itself, and BatchNormGatherStats, in XLA's own
// operations, for any device: the formula of cc/core/formulas/forward.h, in its
// notation. XLA fuses the passes with what surrounds them.
//
// The mean is measured from the first element of a channel, and the variance is
// a mean of squared distances from it, in float64, in a second pass over x: a
// constant channel has a variance of 0. As E[x^2] - E[x]^2, which XLA's own
// batch normalization computes in float32, the variance is lost where the mean
// is large, and y is NaN at a mean of 1e3 and a deviation of 1.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cc/core/formulas/smooth_activation.h"
#include "cc/tf/xla/hlo_channels.h"
#include "cc/tf/xla/hlo_value.h"
#include "xla/hlo/builder/lib/comparators.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {

// The statistics that x is normalized with, in float64.
struct XlaStatistics {
  xla::XlaOp mean, variance;
};

// Statistics of a batch.
inline XlaStatistics StatisticsOf(xla::XlaOp x, const XlaChannels& channels) {
  const auto wide = [](xla::XlaOp v) { return XlaChannels::Wide(v); };
  const xla::XlaOp first = wide(channels.First(x));
  // The distance from an infinity would be NaN.
  const xla::XlaOp center =
      xla::Select(xla::IsFinite(first), first, xla::ZerosLike(first));
  const xla::XlaOp xc = wide(x) - channels.Broadcast(center);
  const xla::XlaOp sum = channels.Sum(xc);
  const xla::XlaOp m = channels.Count(sum);
  const xla::XlaOp xmu = xc - channels.Broadcast(sum / m);
  // Not center + sum/m: XLA multiplies by 1/m instead, and where the two cancel
  // its rounding would be left.
  return {(center * m + sum) / m, channels.Mean(xmu * xmu)};
}

// scale_rstd * (x - mean) + offset.
inline xla::XlaOp BuildNormalized(const XlaCall& of,
                                  const XlaChannels& channels, xla::XlaOp mean,
                                  xla::XlaOp scale_rstd) {
  return channels.Minus(of[Role::kX], mean) * channels.Spread(scale_rstd) +
         channels.Spread(of[Role::kOffset]);
}

// The smooth activation of v, or its derivative there.
template <bool kSlope>
inline xla::XlaOp BuildSmooth(const Call& call, xla::XlaOp v) {
  const HloValue which = static_cast<double>(static_cast<int>(call.activation));
  const HloValue alpha = xla::ScalarLike(v, call.leakyrelu_alpha);
  return WithSmooth<kSlope>(HloValue(v), which, alpha).op;
}

inline xla::XlaOp BuildY(const XlaCall& of, const XlaChannels& channels,
                         const XlaStatistics& statistics) {
  xla::XlaOp y = BuildNormalized(
      of, channels, statistics.mean,
      channels.Wide(Role::kScale) * channels.Rstd(statistics.variance));
  if (of.Has(Role::kSideInput)) {
    y = y + channels.Narrow(of[Role::kSideInput]);
  }
  const Activation activation = of.call.activation;
  if (IsSmooth(activation)) {
    y = BuildSmooth</*kSlope=*/false>(of.call, y);
  } else if (activation != Activation::kIdentity) {
    y = Clamped<HloValue>(y, LowerBound(activation), UpperBound(activation)).op;
  }
  return channels.Elements(y);
}

inline xla::XlaOp SavedVariance(const XlaChannels& channels,
                                const XlaStatistics& of, const XlaCall& call) {
  return call.call.saves_rstd ? channels.Rstd(of.variance) : of.variance;
}

// batch_mean, batch_variance, saved_mean, saved_variance in training.
inline void BuildTrainingStatistics(const XlaChannels& channels,
                                    const XlaStatistics& of, XlaCall* call) {
  XlaCall& out = *call;
  const Call& attrs = call->call;
  if (channels.IsEmpty()) {
    const xla::XlaOp zeros = xla::ZerosLike(out[Role::kScale]);
    const xla::XlaOp nans = xla::FullLike(
        out[Role::kScale], std::numeric_limits<double>::quiet_NaN());
    out[Role::kBatchMean] = out[Role::kBatchVariance] = nans;
    out[Role::kSavedMean] = out[Role::kSavedVariance] = zeros;
    return;
  }
  const auto average = [&](xla::XlaOp value, Role given) {
    const double f = attrs.exponential_avg_factor;
    if (f == 1) return channels.Vector(value);
    const xla::XlaOp old = channels.Wide(given);
    return channels.Vector(xla::ScalarLike(old, 1 - f) * old +
                           xla::ScalarLike(value, f) * value);
  };
  const double m = static_cast<double>(ElementsPerChannel(attrs.view));
  const double bessel =
      attrs.bessel_correction ? m / std::max(m - 1, 1.0) : 1.0;
  out[Role::kBatchMean] = average(of.mean, Role::kMean);
  out[Role::kBatchVariance] = average(
      of.variance * xla::ScalarLike(of.variance, bessel), Role::kVariance);
  out[Role::kSavedMean] = channels.Vector(of.mean);
  out[Role::kSavedVariance] =
      channels.Vector(SavedVariance(channels, of, *call));
}

// What the forward pass keeps for its gradient, see ForwardCoefficientRow.
inline void BuildForwardCoefficients(const XlaChannels& channels,
                                     const XlaStatistics& of, XlaCall* call) {
  const int64_t c = call->call.view.channels;
  const auto rest = [&](xla::XlaOp value) {
    const xla::XlaOp off = value - XlaChannels::Wide(channels.Vector(value));
    return xla::Select(xla::IsFinite(value), off, xla::ZerosLike(off));
  };
  const xla::XlaOp epsilon = xla::FullLike(of.variance, call->call.epsilon);
  const xla::XlaOp deviation = channels.Deviation(of.variance);
  std::vector<xla::XlaOp> rows(kNumForwardCoefficients);
  rows[kMeanRow] = of.mean;
  rows[kMeanRestRow] = rest(of.mean);
  rows[kScaleRstdRow] =
      channels.Wide(Role::kScale) * channels.Rstd(of.variance);
  rows[kDeviationRow] = deviation;
  rows[kDeviationRestRow] = rest(deviation);
  rows[kSavedVarianceRow] = SavedVariance(channels, of, *call);
  rows[kEpsilonRow] = epsilon;
  rows[kEpsilonRestRow] = rest(epsilon);
  for (xla::XlaOp& row : rows) {
    row = channels.Vector(row);
    if (channels.IsEmpty()) row = xla::ZerosLike(row);
    row = xla::Reshape(row, {1, c});
  }
  (*call)[Role::kForwardCoefficients] =
      xla::ConcatInDim(deviation.builder(), rows, /*dimension=*/0);
}

inline void BuildForward(XlaCall* call) {
  XlaCall& out = *call;
  const XlaChannels channels(*call);
  if (!out.Has(Role::kScale)) {  // The statistics alone.
    const XlaStatistics of = StatisticsOf(out[Role::kX], channels);
    const xla::XlaOp m2 = of.variance * channels.Count(of.variance);
    const bool is_empty = channels.IsEmpty();
    out[Role::kLocalMean] = is_empty ? xla::ZerosLike(of.mean) : of.mean;
    out[Role::kLocalM2] = is_empty ? xla::ZerosLike(m2) : m2;
    return;
  }
  if (call->call.is_training) {
    const XlaStatistics of = StatisticsOf(out[Role::kX], channels);
    out[Role::kY] = BuildY(*call, channels, of);
    BuildTrainingStatistics(channels, of, call);
    BuildForwardCoefficients(channels, of, call);
  } else {
    const XlaStatistics of = {channels.Wide(Role::kMean),
                              channels.Wide(Role::kVariance)};
    out[Role::kY] = BuildY(*call, channels, of);
    // Parts have statistics of their own.
    if (!call->call.float64_statistics) {
      BuildForwardCoefficients(channels, of, call);
    }
    out[Role::kBatchMean] = out[Role::kSavedMean] = out[Role::kMean];
    out[Role::kBatchVariance] = out[Role::kSavedVariance] =
        out[Role::kVariance];
  }
}

// count, mean, m2 of `parts` rows: Chan's formula of cc/core/gather_stats.h.
inline std::vector<xla::XlaOp> BuildGatherStats(xla::XlaOp counts,
                                                xla::XlaOp means,
                                                xla::XlaOp m2s, int64_t parts,
                                                int64_t channels) {
  xla::XlaBuilder* const builder = counts.builder();
  const xla::XlaOp zeros =
      xla::Zeros(builder, xla::ShapeUtil::MakeShape(xla::F64, {channels}));
  xla::XlaOp total = xla::Zero(builder, xla::F64), mean = zeros, m2 = zeros;
  const auto spread = [&](xla::XlaOp v) {
    return xla::Broadcast(v, {channels});
  };
  for (int64_t part = 0; part < parts; ++part) {
    const auto of = [&](xla::XlaOp rows, const std::vector<int64_t>& shape) {
      return xla::Reshape(
          xla::SliceInDim(rows, part, part + 1, /*stride=*/1, /*dimno=*/0),
          shape);
    };
    const xla::XlaOp count = of(counts, {}), part_mean = of(means, {channels}),
                     part_m2 = of(m2s, {channels});
    const xla::XlaOp share = count / (total + count);
    const xla::XlaOp delta = part_mean - mean;
    const xla::XlaOp is_part = xla::Gt(count, xla::ZerosLike(count));
    const xla::XlaOp has = spread(is_part);
    const xla::XlaOp first = spread(xla::Eq(total, xla::ZerosLike(total)));
    const xla::XlaOp new_mean =
        xla::Select(first, part_mean, mean + delta * spread(share));
    const xla::XlaOp new_m2 = xla::Select(
        first, part_m2, m2 + part_m2 + delta * delta * spread(total * share));
    mean = xla::Select(has, new_mean, mean);
    m2 = xla::Select(has, new_m2, m2);
    total = xla::Select(is_part, total + count, total);
  }
  return {total, mean, m2};
}

}  // namespace tf_bn_ops
