// The first-order gradient in XLA's own operations, for any device: the formula
// of cc/core/formulas/gradient.h, in its notation. XLA fuses the passes with
// what surrounds them.

#pragma once

#include "cc/core/formulas/activation.h"
#include "cc/core/formulas/forward.h"
#include "cc/tf/xla/hlo_channels.h"
#include "cc/tf/xla/hlo_forward.h"
#include "cc/tf/xla/hlo_value.h"
#include "xla/hlo/builder/lib/comparators.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// A row of what the forward pass kept, in float64.
inline xla::XlaOp KeptRow(const XlaCall& of, ForwardCoefficientRow row) {
  return XlaChannels::Wide(
      xla::Reshape(xla::SliceInDim(of[Role::kForwardCoefficients], row, row + 1,
                                   /*stride=*/1, /*dimno=*/0),
                   {of.call.view.channels}));
}

// Whether it is of the mean, variance and epsilon that are given, see IsKept.
inline xla::XlaOp IsKept(const XlaCall& of) {
  const auto is = [&](ForwardCoefficientRow row, xla::XlaOp given) {
    return xla::Eq(KeptRow(of, row), given);
  };
  const xla::XlaOp mean = XlaChannels::Wide(of[Role::kMean]);
  const double epsilon = of.call.epsilon;
  const bool is_wide = of.call.dtype == DType::kFloat64;
  const double part =
      is_wide ? epsilon : static_cast<double>(static_cast<float>(epsilon));
  const double rest = static_cast<double>(static_cast<float>(epsilon - part));
  return xla::And(
      xla::And(is(kMeanRow, mean),
               is(kSavedVarianceRow, XlaChannels::Wide(of[Role::kVariance]))),
      xla::And(is(kEpsilonRow, xla::FullLike(mean, part)),
               is(kEpsilonRestRow, xla::FullLike(mean, rest))));
}

// y_backprop where the activation passes it, by y, or by the y that follows
// from x where that is not given; times the derivative of a smooth one at what
// the forward pass computed: of x, by what it kept or, where that is not given,
// by `mean` and `rstd`, and of the side input, which is in the place of y.
inline xla::XlaOp BuildMasked(const XlaCall& of, const XlaChannels& channels,
                              xla::XlaOp mean, xla::XlaOp rstd) {
  const xla::XlaOp dy = of[Role::kYBackprop];
  const Activation activation = of.call.activation;
  if (activation == Activation::kIdentity) return dy;
  if (IsSmooth(activation)) {
    xla::XlaOp scale_rstd = channels.Wide(Role::kScale) * rstd;
    if (of.Has(Role::kForwardCoefficients)) {
      mean = KeptRow(of, kMeanRow) + KeptRow(of, kMeanRestRow);
      scale_rstd = KeptRow(of, kScaleRstdRow);
    }
    xla::XlaOp v = BuildNormalized(of, channels, mean, scale_rstd);
    if (of.Has(Role::kY)) v = v + channels.Narrow(of[Role::kY]);
    return channels.Narrow(dy) * BuildSmooth</*kSlope=*/true>(of.call, v);
  }
  const xla::XlaOp y = of.Has(Role::kY)
                           ? of[Role::kY]
                           : BuildY(of, channels,
                                    {channels.Wide(Role::kMean),
                                     channels.Wide(Role::kVariance)});
  const auto [lowest, highest] = MaskBoundsOf<double>(
      activation, of.call.dtype, /*before_rounding=*/false);
  return MaskedBy<HloValue>(dy, y, lowest, highest).op;
}

inline void BuildGradient(XlaCall* call) {
  XlaCall& out = *call;
  const XlaChannels channels(*call);
  const xla::XlaOp x = out[Role::kX];
  const auto wide = [](xla::XlaOp v) { return XlaChannels::Wide(v); };
  xla::XlaOp mean = channels.Wide(Role::kMean);
  const xla::XlaOp variance = channels.Wide(Role::kVariance);
  xla::XlaOp rstd =
      call->call.variance_is_rstd ? variance : channels.Rstd(variance);
  if (out.Has(Role::kForwardCoefficients) && call->call.is_training) {
    const auto row = [&](ForwardCoefficientRow i) { return KeptRow(out, i); };
    const xla::XlaOp is_kept = IsKept(out);
    mean = xla::Select(is_kept, row(kMeanRow) + row(kMeanRestRow), mean);
    const xla::XlaOp deviation = row(kDeviationRow) + row(kDeviationRestRow);
    rstd =
        xla::Select(is_kept, xla::ScalarLike(deviation, 1.0) / deviation, rstd);
  }
  const xla::XlaOp dy = BuildMasked(*call, channels, mean, rstd);
  const bool has_totals = out.Has(Role::kSumDy);
  xla::XlaOp dy_sum, dy_xmu_sum, count;
  if (has_totals) {
    dy_sum = out[Role::kSumDy];
    dy_xmu_sum = out[Role::kSumDyXmu];
    count = xla::Broadcast(out[Role::kCount], {call->call.view.channels});
  } else {
    dy_sum = channels.Sum(dy);
    dy_xmu_sum = channels.Sum(wide(dy) * (wide(x) - channels.Broadcast(mean)));
    count = channels.Count(dy_sum);
  }
  xla::XlaOp centered = channels.Narrow(dy);
  if (call->call.is_training || has_totals) {
    const xla::XlaOp s = rstd * dy_xmu_sum / count;
    const xla::XlaOp xhat = channels.Minus(x, mean) * channels.Spread(rstd);
    centered = channels.Minus(dy, dy_sum / count) - xhat * channels.Spread(s);
  }
  const xla::XlaOp f = channels.Wide(Role::kScale) * rstd;
  out[Role::kXBackprop] = channels.Elements(channels.Spread(f) * centered);
  out[Role::kSideInputBackprop] = channels.Elements(dy);
  out[Role::kScaleBackprop] = channels.VectorOfSum(rstd * dy_xmu_sum);
  out[Role::kOffsetBackprop] = channels.Vector(dy_sum);
  out[Role::kLocalSumDy] = dy_sum;
  out[Role::kLocalSumDyXmu] = dy_xmu_sum;
}

}  // namespace tf_bn_ops
