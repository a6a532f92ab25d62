// Lists the arrays of each call by element type, and checks where they begin.

#include "cc/c_api/alignment.h"

#include <cstdint>
#include <initializer_list>

#include "cc/core/dtype.h"

namespace tf_bn_ops {
namespace c_api {
namespace {

// Arrays of one element type; nullptr is none.
struct Arrays {
  DType dtype;
  std::initializer_list<const void*> pointers;
  const char* names;  // For the sentence.
};

bool AreAligned(const Arrays& arrays) {
  for (const void* const p : arrays.pointers) {
    if (reinterpret_cast<uintptr_t>(p) % SizeOf(arrays.dtype) != 0) {
      return false;
    }
  }
  return true;
}

// Allocates nothing where all are aligned.
std::string Check(std::initializer_list<Arrays> all) {
  for (const Arrays& arrays : all) {
    if (!AreAligned(arrays)) {
      return std::string(arrays.names) +
             " must be aligned to their element type";
    }
  }
  return "";
}

// That of the forward's coefficients.
DType CoefficientDType(const FormulaArgs& args) {
  return args.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace

std::string CheckAlignment(const BatchNormArgs& args) {
  return Check(
      {{args.dtype, {args.x, args.side_input, args.y}, "x, side_input and y"},
       {args.stat_dtype,
        {args.scale, args.offset, args.batch_mean, args.batch_variance,
         args.saved_mean, args.saved_variance},
        "scale, offset, batch_mean, batch_variance, saved_mean and "
        "saved_variance"},
       {StatisticsDTypeOf(args),
        {args.mean, args.variance},
        "mean and variance"},
       {DType::kFloat64, {args.mean64, args.m2}, "mean and m2"},
       {CoefficientDType(args),
        {args.forward_coefficients},
        "forward_coefficients"}});
}

std::string CheckAlignment(const BatchNormGradArgs& args) {
  return Check({{args.dtype,
                 {args.y_backprop, args.x, args.x_backprop},
                 "y_backprop, x and x_backprop"},
                {args.stat_dtype,
                 {args.scale, args.scale_backprop, args.offset_backprop},
                 "scale, scale_backprop and offset_backprop"},
                {StatisticsDTypeOf(args),
                 {args.mean, args.variance},
                 "mean and variance"},
                {DType::kFloat64,
                 {args.sum_dy, args.sum_dy_xmu},
                 "sum_dy and sum_dy_xmu"}});
}

std::string CheckAlignment(const BatchNormGradExArgs& args) {
  const std::string sentence =
      CheckAlignment(static_cast<const BatchNormGradArgs&>(args));
  if (!sentence.empty()) return sentence;
  return Check({{args.dtype,
                 {args.y, args.side_input_backprop},
                 "y and side_input_backprop"},
                {args.stat_dtype, {args.offset}, "offset"},
                {CoefficientDType(args),
                 {args.forward_coefficients},
                 "forward_coefficients"}});
}

std::string CheckAlignment(const BatchNormBackwardElemtArgs& args) {
  const std::string sentence =
      CheckAlignment(static_cast<const BatchNormGradExArgs&>(args));
  if (!sentence.empty()) return sentence;
  return Check({{DType::kFloat64,
                 {args.total_dy, args.total_dy_xmu},
                 "sum_dy and sum_dy_xmu"}});
}

std::string CheckAlignment(const BatchNormGradGradArgs& args) {
  return Check(
      {{args.dtype,
        {args.x_backprop_grad, args.y_backprop, args.x, args.y_backprop_grad,
         args.x_grad},
        "x_backprop_grad, y_backprop, x, y_backprop_grad and x_grad"},
       {args.stat_dtype,
        {args.scale_backprop_grad, args.offset_backprop_grad, args.scale,
         args.mean, args.variance, args.scale_grad},
        "scale_backprop_grad, offset_backprop_grad, scale, mean, variance "
        "and scale_grad"}});
}

std::string CheckAlignment(const GatherStatsArgs& args) {
  return Check(
      {{DType::kFloat64,
        {args.counts, args.means, args.m2s, args.count, args.mean, args.m2},
        "counts, means, m2s, count, mean and m2"}});
}

}  // namespace c_api
}  // namespace tf_bn_ops
