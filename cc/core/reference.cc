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

void ReferenceBatchNormGradGrad(const BatchNormGradGradArgs& args) {
  const View& v = args.view;
  const double m = static_cast<double>(ElementsPerChannel(v));
  for (int64_t c = 0; c < v.channels; ++c) {
    const auto for_each = [&](const auto& f) {
      for (int64_t o = 0; o < v.outer; ++o) {
        for (int64_t i = 0; i < v.inner; ++i) {
          const int64_t at = (o * v.channels + c) * v.inner + i;
          f(at, LoadAsDouble(args.dtype, args.x_backprop_grad, at),
            LoadAsDouble(args.dtype, args.y_backprop, at),
            LoadAsDouble(args.dtype, args.x, at));
        }
      }
    };
    double center = LoadAsDouble(args.stat_dtype, args.mean, c), shift = 0;
    double variance = LoadAsDouble(args.stat_dtype, args.variance, c);
    double gx_mean = 0, dy_mean = 0;
    if (args.is_training) {
      center = CenterOf(args, c);
      Sum gx_sum, dy_sum, x_sum, square_sum;
      for_each([&](int64_t, double gx, double dy, double x) {
        gx_sum.Add(gx);
        dy_sum.Add(dy);
        x_sum.Add(x - center);
      });
      gx_mean = gx_sum.Value() / m;
      dy_mean = dy_sum.Value() / m;
      shift = x_sum.Value() / m;
      for_each([&](int64_t, double, double, double x) {
        square_sum.Add((x - center - shift) * (x - center - shift));
      });
      variance = square_sum.Value() / m;
    }
    const double rstd = 1 / std::sqrt(variance + args.epsilon);
    const double f = LoadAsDouble(args.stat_dtype, args.scale, c) * rstd;
    const double gs =
        LoadAsDouble(args.stat_dtype, args.scale_backprop_grad, c);
    const double go =
        LoadAsDouble(args.stat_dtype, args.offset_backprop_grad, c);
    Sum gx_xhat, dy_xhat, gx_dy;
    for_each([&](int64_t, double gx, double dy, double x) {
      const double xhat = (x - center - shift) * rstd;
      gx_xhat.Add((gx - gx_mean) * xhat);
      dy_xhat.Add((dy - dy_mean) * xhat);
      gx_dy.Add((gx - gx_mean) * (dy - dy_mean));
    });
    // Frozen, the formulas are those of training with these three zero but in
    // scale_grad.
    const bool training = args.is_training;
    const double a = training ? gx_xhat.Value() / m : 0;
    const double s = training ? dy_xhat.Value() / m : 0;
    const double b = training ? gx_dy.Value() / m : 0;
    for_each([&](int64_t at, double gx, double dy, double x) {
      const double xhat = (x - center - shift) * rstd;
      gx -= gx_mean;
      dy -= dy_mean;
      StoreFromDouble(args.dtype, args.y_backprop_grad, at,
                      f * gx + (gs - f * a) * xhat + go);
      StoreFromDouble(args.dtype, args.x_grad, at,
                      rstd * ((gs - f * a) * dy - f * s * gx -
                              (gs * s + f * (b - 3 * a * s)) * xhat));
    });
    StoreFromDouble(args.stat_dtype, args.scale_grad, c,
                    rstd * (gx_dy.Value() - m * a * s));
  }
}

}  // namespace tf_bn_ops
