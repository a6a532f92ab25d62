// Fuzz target: the second-order gradient through the C ABI.
//
// Promised: no crash and no access outside the arrays for any numbers in them
// and any arguments that are refused; one sentence for those that are; bitwise
// the same results for one thread and in place over any two inputs.

#include <cstdint>

#include "cc/c_api/tf_bn_ops_c.h"
#include "tests/fuzz/formula_call.h"
#include "tests/fuzz/input.h"

namespace {

using tf_bn_ops::fuzz::Array;
using tf_bn_ops::fuzz::RunCall;
using tf_bn_ops::fuzz::Same;
using tf_bn_ops::fuzz::Shape;
using Args = tf_bn_ops::Call;

// The inputs with an element per channel.
struct Vectors {
  Vectors(const Shape& shape, tf_bn_ops::fuzz::Filler* filler)
      : scale_backprop_grad(filler->Vector(shape)),
        offset_backprop_grad(filler->Vector(shape)),
        scale(filler->Vector(shape)),
        mean(filler->Vector(shape)),
        variance(filler->Vector(shape)) {}

  void SetIn(Args* args) const {
    args->scale_backprop_grad = scale_backprop_grad.data();
    args->offset_backprop_grad = offset_backprop_grad.data();
    args->scale = scale.data();
    args->mean = mean.data();
    args->variance = variance.data();
  }

  const Array scale_backprop_grad, offset_backprop_grad, scale, mean, variance;
};

// Runs `args` with outputs in these arrays.
void Run(Args args, Array* y_backprop_grad, Array* x_grad, Array* scale_grad,
         int threads) {
  args.y_backprop_grad = y_backprop_grad->data();
  args.x_grad = x_grad->data();
  args.scale_grad = scale_grad->data();
  RunCall(args, threads);
}

// A pointer that is missed.
bool Spoil(const Shape& shape, tf_bn_ops::fuzz::Input* input, Args* args) {
  const bool of_channels = (input->Take<uint8_t>() & 1) != 0;
  if (of_channels) {
    args->offset_backprop_grad = nullptr;
    return shape.channels > 0;
  }
  args->x_backprop_grad = nullptr;
  return shape.elements() > 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  const uint8_t choices = input.Take<uint8_t>();
  const Shape shape = TakeShape(choices, &input);
  auto args = shape.CallOf(tf_bn_ops::FormulaKind::kSecondOrder);
  args.is_training = (choices & 8) != 0;
  args.epsilon = input.Take<double>();
  tf_bn_ops::fuzz::Input wrong = input;
  tf_bn_ops::fuzz::Filler filler(input.Rest());

  Array inputs[3] = {filler.View(shape), filler.View(shape),
                     filler.View(shape)};
  const Vectors vectors(shape, &filler);
  args.x_backprop_grad = inputs[0].data();
  args.y_backprop = inputs[1].data();
  args.x = inputs[2].data();
  vectors.SetIn(&args);

  Array y_backprop_grad = filler.View(shape), x_grad = filler.View(shape),
        scale_grad = filler.Vector(shape);
  Run(args, &y_backprop_grad, &x_grad, &scale_grad, tf_bn_ops::fuzz::kThreads);
  const auto check = [&](const Array& y, const Array& x, const Array& vector) {
    TFBN_FUZZ_CHECK(Same(y, y_backprop_grad, shape.dtype, shape.elements()));
    TFBN_FUZZ_CHECK(Same(x, x_grad, shape.dtype, shape.elements()));
    TFBN_FUZZ_CHECK(Same(vector, scale_grad, shape.stat_dtype, shape.channels));
  };
  Array y = filler.View(shape), x = filler.View(shape),
        vector = filler.Vector(shape);
  Run(args, &y, &x, &vector, 1);
  check(y, x, vector);

  args.y_backprop_grad = y.data();
  args.x_grad = x.data();
  args.scale_grad = vector.data();
  CheckWrong(args, &wrong,
             [&](Args* spoiled) { return Spoil(shape, &wrong, spoiled); });

  // In place: over two inputs, in the order that the input says.
  const int first = (choices >> 4) % 3;
  const int second = (first + 1 + (choices >> 6) % 2) % 3;
  Run(args, &inputs[first], &inputs[second], &vector,
      tf_bn_ops::fuzz::kThreads);
  check(inputs[first], inputs[second], vector);
  return 0;
}
