// Fuzz target: batch normalization with an activation through the C ABI, and
// the gradient behind it.
//
// Promised: no crash and no access outside the arrays for any numbers in them
// and any arguments that are refused; one sentence for those that are; bitwise
// the same gradient with the mask from x by the forward's coefficients as with
// the mask from y, in place over y too.

#include <cstdint>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/formulas/forward.h"
#include "tests/fuzz/formula_call.h"
#include "tests/fuzz/input.h"

namespace {

using tf_bn_ops::Activation;
using tf_bn_ops::Call;
using tf_bn_ops::FormulaKind;
using tf_bn_ops::fuzz::Array;
using tf_bn_ops::fuzz::Filler;
using tf_bn_ops::fuzz::RunCall;
using tf_bn_ops::fuzz::Same;
using tf_bn_ops::fuzz::Shape;

// The outputs of a gradient.
struct Gradient {
  Array x_backprop, scale_backprop, offset_backprop;
};

void RunGradient(Call args, Gradient* out) {
  args.x_backprop = out->x_backprop.data();
  args.scale_backprop = out->scale_backprop.data();
  args.offset_backprop = out->offset_backprop.data();
  RunCall(args);
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
bool Spoil(tf_bn_ops::fuzz::Input* input, Call* args) {
  if ((input->Take<uint8_t>() & 1) != 0) return SpoilActivation(input, args);
  args->y = nullptr;
  return NumElements(args->view) > 0;
}

// The tensors of a forward call and of its gradient, in the order in which the
// input fills them.
struct Tensors {
  Tensors(const Shape& shape, Filler* filler)
      : x(filler->View(shape)),
        y_backprop(filler->View(shape)),
        scale(filler->Vector(shape)),
        offset(filler->Vector(shape)),
        mean(filler->Vector(shape)),
        variance(filler->Vector(shape)),
        y(filler->View(shape)),
        batch_mean(filler->Vector(shape)),
        batch_variance(filler->Vector(shape)),
        saved_mean(filler->Vector(shape)),
        saved_variance(filler->Vector(shape)),
        coefficients(filler->Elements(
            tf_bn_ops::kNumForwardCoefficients * shape.channels,
            shape.dtype == TFBN_FLOAT64 ? TFBN_FLOAT64 : TFBN_FLOAT32)) {}

  const Array x, y_backprop, scale, offset, mean, variance;
  Array y, batch_mean, batch_variance, saved_mean, saved_variance;
  Array coefficients;
};

// Fills in the outputs of the forward pass.
void RunForward(Call args, Tensors* t) {
  args.exponential_avg_factor = 1;
  args.x = t->x.data();
  args.scale = t->scale.data();
  args.offset = t->offset.data();
  args.mean = t->mean.data();
  args.variance = t->variance.data();
  args.y = t->y.data();
  args.batch_mean = t->batch_mean.data();
  args.batch_variance = t->batch_variance.data();
  args.saved_mean = t->saved_mean.data();
  args.saved_variance = t->saved_variance.data();
  args.forward_coefficients = t->coefficients.data();
  RunCall(args);
}

// The gradient of that forward call, with the mask from y; without outputs.
Call GradientOf(const Call& forward, const Shape& shape, Tensors& t) {
  Call args = shape.CallOf(FormulaKind::kGradient);
  args.is_training = forward.is_training;
  args.activation = forward.activation;
  args.epsilon = forward.epsilon;
  args.y_backprop = t.y_backprop.data();
  args.x = t.x.data();
  args.scale = t.scale.data();
  args.mean = t.saved_mean.data();
  args.variance = t.saved_variance.data();
  args.forward_coefficients = t.coefficients.data();
  args.y = t.y.data();
  return args;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  const uint8_t choices = input.Take<uint8_t>();
  const Shape shape = TakeShape(choices, &input);
  Call forward = shape.CallOf(FormulaKind::kForward);
  forward.bessel_correction = 0;
  forward.is_training = (choices & 8) != 0;
  forward.activation =
      (choices & 16) != 0 ? Activation::kRelu6 : Activation::kRelu;
  forward.epsilon = input.Take<double>();
  tf_bn_ops::fuzz::Input wrong = input;
  Filler filler(input.Rest());
  Tensors tensors(shape, &filler);
  RunForward(forward, &tensors);

  Call gradient = GradientOf(forward, shape, tensors);
  const auto new_gradient = [&] {
    return Gradient{filler.View(shape), filler.Vector(shape),
                    filler.Vector(shape)};
  };
  Gradient from_y = new_gradient(), from_x = new_gradient();
  RunGradient(gradient, &from_y);
  gradient.offset = tensors.offset.data();
  RunGradient(gradient, &from_x);
  CheckSame(from_x, from_y, shape);
  gradient.x_backprop = from_x.x_backprop.data();
  gradient.scale_backprop = from_x.scale_backprop.data();
  gradient.offset_backprop = from_x.offset_backprop.data();
  CheckWrong(gradient, &wrong, [&](Call* args) { return Spoil(&wrong, args); });

  // In place, with the gradient of a side input.
  gradient.x_backprop = tensors.y.data();
  Array side = filler.View(shape);
  gradient.side_input_backprop = side.data();
  RunCall(gradient);
  CheckSame({tensors.y, from_x.scale_backprop, from_x.offset_backprop}, from_y,
            shape);
  return 0;
}
