// The CPU kernels of the second-order batch-norm gradient
// (cc/core/batch_norm_grad_grad.h), compiled once for every line of
// isa_builds.txt with TF_BN_OPS_ISA set to its name.

#include "cc/core/batch_norm_grad_grad.h"
#include "cc/cpu/isa/kernels.h"
#include "cc/cpu/isa/passes.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// `value` + `rest` as two numbers of a narrower type.
template <typename C>
void Split(double value, double rest, C* part, C* part_rest) {
  *part = static_cast<C>(value);
  // Infinity minus infinity would be NaN where the value is a plain infinity.
  const bool finite = value - value == 0;
  *part_rest = finite
                   ? static_cast<C>((value - static_cast<double>(*part)) + rest)
                   : C{0};
}

struct SecondOrderFormula : SecondOrder {
  // Seven sums in two vectors of double each, or thirteen coefficients, are as
  // much as the registers hold.
  static constexpr int kReduceVectors = 1, kApplyVectors = 1;

  static void Centers(const Args& args, int64_t c, int64_t n, double* out) {
    if (!args.is_training) {
      // No sum is measured from one, and in place x may be overwritten already.
      for (int64_t i = 0; i < n; ++i) out[i] = 0;
      return;
    }
    if (args.view.inner == 1) {
      LoadAsDoubles(args.dtype, args.x, c, n, out);
      return;
    }
    for (int64_t i = 0; i < n; ++i) out[i] = CenterOf(args, c + i);
  }

  // The sums of kernels.h, in their order.
  template <int kSums>
  TFBN_INLINE void Accumulate(const VD (&in)[kInputs], VD center,
                              VD (&sum)[kSums]) {
    sum[kGxDySum] += in[kGx] * in[kDy];
    if constexpr (kSums == kNumSums) {
      const VD xc = in[kX] - center;
      sum[kGxSum] += in[kGx];
      sum[kDySum] += in[kDy];
      sum[kXcSum] += xc;
      sum[kXcXcSum] += xc * xc;
      sum[kGxXcSum] += in[kGx] * xc;
      sum[kDyXcSum] += in[kDy] * xc;
    }
  }

  template <typename T>
  static void Coefficients(const Args& args, int64_t c0, int64_t c1,
                           const ChannelSums& sums, void* coefficients) {
    using C = typename Compute<T>::Scalar;
    const int64_t stride = CoefficientStride(args.view.channels);
    for (int64_t c = c0; c < c1; ++c) {
      // Frozen, there are no sums yet, nor are they used.
      const BatchNormGradGradChannel channel = ChannelOf(
          args, c, CenterOf(args, c),
          args.is_training ? SumsAt(sums, c) : BatchNormGradGradSums{});
      C* const out = static_cast<C*>(coefficients) + c;
      Split(channel.gx_mean, 0, out + kGxMean * stride,
            out + kGxMeanRest * stride);
      Split(channel.dy_mean, 0, out + kDyMean * stride,
            out + kDyMeanRest * stride);
      Split(channel.mean, channel.mean_rest, out + kMean * stride,
            out + kMeanRest * stride);
      const auto store = [&](Coefficient k, double value) {
        out[k * stride] = static_cast<C>(value);
      };
      store(kRstd, channel.rstd);
      store(kYFromGx, channel.y_from_gx);
      store(kYFromXhat, channel.y_from_xhat);
      store(kYConstant, channel.y_constant);
      store(kXFromDy, channel.x_from_dy);
      store(kXFromGx, channel.x_from_gx);
      store(kXFromXhat, channel.x_from_xhat);
    }
  }

  //   xhat = ((x - mean) - mean_rest) * rstd
  //   frozen:    y_backprop_grad = (y_from_gx * gx + y_from_xhat * xhat)
  //                                + y_constant
  //              x_grad = x_from_dy * dy
  //   training:  the same of gx and dy less their means, and
  //              x_grad = (x_from_dy * dy + x_from_gx * gx)
  //                       + x_from_xhat * xhat
  template <bool kTraining, typename V>
  TFBN_INLINE void Element(const V (&in)[kInputs],
                           const V (&k)[kNumCoefficients], V (&out)[kOutputs]) {
    V gx = in[kGx], dy = in[kDy], xc = in[kX] - k[kMean];
    if constexpr (kTraining) {
      gx = (gx - k[kGxMean]) - k[kGxMeanRest];
      dy = (dy - k[kDyMean]) - k[kDyMeanRest];
      xc = xc - k[kMeanRest];
    }
    const V xhat = xc * k[kRstd];
    out[kYBackpropGrad] =
        (k[kYFromGx] * gx + k[kYFromXhat] * xhat) + k[kYConstant];
    V x_grad = k[kXFromDy] * dy;
    if constexpr (kTraining) {
      x_grad = (x_grad + k[kXFromGx] * gx) + k[kXFromXhat] * xhat;
    }
    out[kXGrad] = x_grad;
  }
};

}  // namespace

const Kernels<SecondOrder>& TFBN_PER_BUILD(SecondOrderKernels)();

const Kernels<SecondOrder>& TFBN_PER_BUILD(SecondOrderKernels)() {
  static constexpr Kernels<SecondOrder> kKernels =
      TFBN_KERNELS(SecondOrderFormula);
  return kKernels;
}

}  // namespace tf_bn_ops
