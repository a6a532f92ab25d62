// The reference: compensated sums in double, one loop.

#include "cc/core/reference.h"

#include <cmath>

namespace tf_bn_ops {
namespace {

// Neumaier's compensated sum, so that also float64 results are good to the last
// bits.
class Sum {
 public:
  void Add(double term) {
    const double total = total_ + term;
    compensation_ += std::fabs(total_) >= std::fabs(term)
                         ? (total_ - total) + term
                         : (term - total) + total_;
    total_ = total;
  }
  double Value() const {
    // Infinities and NaN would turn the compensation into NaN; the plain total
    // is right then.
    return std::isfinite(total_) ? total_ + compensation_ : total_;
  }

 private:
  double total_ = 0;
  double compensation_ = 0;
};

}  // namespace

void ReferenceBatchNormGrad(const BatchNormGradArgs& args) {
  const View& v = args.view;
  const double m = static_cast<double>(ElementsPerChannel(v));
  for (int64_t c = 0; c < v.channels; ++c) {
    const double mean = LoadAsDouble(args.stat_dtype, args.mean, c);
    const double rstd = Rstd(args, c);
    const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
    Sum sum_dy, sum_dy_xmu;
    for (int64_t o = 0; o < v.outer; ++o) {
      for (int64_t i = 0; i < v.inner; ++i) {
        const int64_t at = (o * v.channels + c) * v.inner + i;
        const double dy = LoadAsDouble(args.dtype, args.y_backprop, at);
        sum_dy.Add(dy);
        sum_dy_xmu.Add(dy * (LoadAsDouble(args.dtype, args.x, at) - mean));
      }
    }
    const double offset_backprop = sum_dy.Value();
    const double scale_backprop = rstd * sum_dy_xmu.Value();
    for (int64_t o = 0; o < v.outer; ++o) {
      for (int64_t i = 0; i < v.inner; ++i) {
        const int64_t at = (o * v.channels + c) * v.inner + i;
        const double dy = LoadAsDouble(args.dtype, args.y_backprop, at);
        double dx = dy;
        if (args.is_training) {
          const double x = LoadAsDouble(args.dtype, args.x, at);
          dx =
              dy - offset_backprop / m - (x - mean) * rstd * scale_backprop / m;
        }
        StoreFromDouble(args.dtype, args.x_backprop, at, scale * rstd * dx);
      }
    }
    StoreFromDouble(args.stat_dtype, args.offset_backprop, c, offset_backprop);
    StoreFromDouble(args.stat_dtype, args.scale_backprop, c, scale_backprop);
  }
}

}  // namespace tf_bn_ops
