// Fuzz target: batch normalization with an activation through the C ABI, and
// the gradient behind it.
//
// Promised: no crash and no access outside the arrays for any numbers in them
// and any arguments that are refused; one sentence for those that are; bitwise
// the same gradient with the mask from x by the forward's coefficients as with
// the mask from y, in place over y too.

#include <cstdint>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/formulas/batch_norm.h"
#include "cc/fuzz/formula_call.h"
#include "cc/fuzz/input.h"

namespace {

using tf_bn_ops::fuzz::Array;
using tf_bn_ops::fuzz::RunFormula;
using tf_bn_ops::fuzz::Same;
using tf_bn_ops::fuzz::Shape;

// The outputs of a gradient.
struct Gradient {
  Array x_backprop, scale_backprop, offset_backprop;
};

void RunGradient(tfbn_batch_norm_grad_ex_args args, Gradient* out) {
  args.x_backprop = out->x_backprop.data();
  args.scale_backprop = out->scale_backprop.data();
  args.offset_backprop = out->offset_backprop.data();
  RunFormula(tfbn_cpu_batch_norm_grad_ex, args);
}

void CheckSame(const Gradient& a, const Gradient& b, const Shape& shape) {
  TFBN_FUZZ_CHECK(
      Same(a.x_backprop, b.x_backprop, shape.dtype, shape.elements()));
  TFBN_FUZZ_CHECK(Same(a.scale_backprop, b.scale_backprop, shape.stat_dtype,
                       shape.channels));
  TFBN_FUZZ_CHECK(Same(a.offset_backprop, b.offset_backprop, shape.stat_dtype,
                       shape.channels));
}

// An activation that there is not, or no y.
bool Spoil(tf_bn_ops::fuzz::Input* input, tfbn_batch_norm_grad_ex_args* args) {
  if ((input->Take<uint8_t>() & 1) != 0) return SpoilActivation(input, args);
  args->y = nullptr;
  return args->outer * args->channels * args->inner > 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  const uint8_t choices = input.Take<uint8_t>();
  const Shape shape = TakeShape(choices, &input);
  auto forward = shape.Common<tfbn_batch_norm_args>();
  forward.is_training = (choices & 8) != 0;
  forward.activation = (choices & 16) != 0 ? TFBN_RELU6 : TFBN_RELU;
  forward.epsilon = input.Take<double>();
  forward.exponential_avg_factor = 1;
  auto gradient = shape.Common<tfbn_batch_norm_grad_ex_args>();
  tf_bn_ops::fuzz::Input wrong = input;
  tf_bn_ops::fuzz::Filler filler(input.Rest());
  const auto view = [&] { return filler.View(shape); };
  const auto vector = [&] { return filler.Vector(shape); };
  const Array x = view(), y_backprop = view(), scale = vector(),
              offset = vector(), mean = vector(), variance = vector();
  Array y = view(), batch_mean = vector(), batch_variance = vector(),
        saved_mean = vector(), saved_variance = vector();
  Array coefficients = filler.Elements(
      tf_bn_ops::kNumForwardCoefficients * shape.channels,
      shape.dtype == TFBN_FLOAT64 ? TFBN_FLOAT64 : TFBN_FLOAT32);
  forward.x = x.data();
  forward.scale = scale.data();
  forward.offset = offset.data();
  forward.mean = mean.data();
  forward.variance = variance.data();
  forward.y = y.data();
  forward.batch_mean = batch_mean.data();
  forward.batch_variance = batch_variance.data();
  forward.saved_mean = saved_mean.data();
  forward.saved_variance = saved_variance.data();
  forward.forward_coefficients = coefficients.data();
  RunFormula(tfbn_cpu_batch_norm, forward);

  gradient.is_training = forward.is_training;
  gradient.activation = forward.activation;
  gradient.epsilon = forward.epsilon;
  gradient.y_backprop = y_backprop.data();
  gradient.x = x.data();
  gradient.scale = scale.data();
  gradient.mean = saved_mean.data();
  gradient.variance = saved_variance.data();
  gradient.offset = offset.data();
  gradient.y = y.data();
  Gradient from_y{view(), vector(), vector()};
  Gradient from_x{view(), vector(), vector()};
  RunGradient(gradient, &from_y);
  gradient.forward_coefficients = coefficients.data();
  RunGradient(gradient, &from_x);
  CheckSame(from_x, from_y, shape);
  gradient.x_backprop = from_x.x_backprop.data();
  gradient.scale_backprop = from_x.scale_backprop.data();
  gradient.offset_backprop = from_x.offset_backprop.data();
  CheckWrong(&tfbn_cpu_batch_norm_grad_ex, gradient, &wrong,
             [&](auto* args) { return Spoil(&wrong, args); });

  // In place, with the gradient of a side input.
  gradient.x_backprop = y.data();
  Array side = view();
  gradient.side_input_backprop = side.data();
  RunFormula(tfbn_cpu_batch_norm_grad_ex, gradient);
  CheckSame({y, from_x.scale_backprop, from_x.offset_backprop}, from_y, shape);
  return 0;
}
