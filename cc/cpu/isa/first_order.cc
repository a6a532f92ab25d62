// The CPU kernels of the batch-norm gradient (cc/core/batch_norm_grad.h),
// compiled once for every line of isa_builds.txt with TF_BN_OPS_ISA set to its
// name.

#include "cc/cpu/isa/kernels.h"
#include "cc/cpu/isa/passes.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

struct FirstOrderFormula : FirstOrder {
  static constexpr int kReduceVectors = kUnroll;
  static constexpr int kApplyVectors = kUnroll;

  static void Centers(const Args& args, int64_t c, int64_t n, double* out) {
    LoadAsDoubles(args.stat_dtype, args.mean, c, n, out);
  }

  //   sum[kDySum]    += dy
  //   sum[kDyXmuSum] += dy * (x - mean)
  template <int kSums>
  TFBN_INLINE void Accumulate(const VD (&in)[kInputs], VD mean,
                              VD (&sum)[kSums]) {
    sum[kDySum] += in[kDy];
    sum[kDyXmuSum] += in[kDy] * (in[kX] - mean);
  }

  template <typename T>
  static void Coefficients(const Args& args, int64_t c0, int64_t c1,
                           const ChannelSums& sums, void* coefficients) {
    using C = typename Compute<T>::Scalar;
    const int64_t stride = CoefficientStride(args.view.channels);
    const double m = static_cast<double>(ElementsPerChannel(args.view));
    for (int64_t c = c0; c < c1; ++c) {
      const double rstd = Rstd(args, c);
      const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
      C* const out = static_cast<C*>(coefficients) + c;
      if (!args.is_training) {  // Nothing else is used, and no sums are there.
        out[kScaleRstd * stride] = static_cast<C>(scale * rstd);
        continue;
      }
      const auto of_channel = CoefficientsOf<C>(
          m, LoadAsDouble(args.stat_dtype, args.mean, c), rstd, scale,
          SumsOf(sums, kDySum)[c], SumsOf(sums, kDyXmuSum)[c]);
      out[kMean * stride] = of_channel.mean;
      out[kRstd * stride] = of_channel.rstd;
      out[kDyMean * stride] = of_channel.dy_mean;
      out[kDyMeanRest * stride] = of_channel.dy_mean_rest;
      out[kXhatDyMean * stride] = of_channel.xhat_dy_mean;
      out[kScaleRstd * stride] = of_channel.scale_rstd;
    }
  }

  //   frozen:    out = scale_rstd * dy
  //   training:  out = scale_rstd * (((dy - dy_mean) - dy_mean_rest)
  //                                  - ((x - mean) * rstd) * xhat_dy_mean)
  template <bool kTraining, typename V>
  TFBN_INLINE void Element(const V (&in)[kInputs],
                           const V (&k)[kNumCoefficients], V (&out)[kOutputs]) {
    V v = in[kDy];
    if (kTraining) {
      v = ((v - k[kDyMean]) - k[kDyMeanRest]) -
          ((in[kX] - k[kMean]) * k[kRstd]) * k[kXhatDyMean];
    }
    out[0] = k[kScaleRstd] * v;
  }
};

}  // namespace

const Kernels<FirstOrder>& TFBN_PER_BUILD(FirstOrderKernels)();

const Kernels<FirstOrder>& TFBN_PER_BUILD(FirstOrderKernels)() {
  static constexpr Kernels<FirstOrder> kKernels =
      TFBN_KERNELS(FirstOrderFormula);
  return kKernels;
}

}  // namespace tf_bn_ops
