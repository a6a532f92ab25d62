// Fuzz target: the parts of synchronised batch normalization through the C ABI.
//
// Promised: no crash and no access outside the arrays for any numbers in them
// and any arguments that are refused; one sentence for those that are; the
// gradient is bitwise identical with the mask from x as with the mask from y,
// and in place; statistics that are gathered from one part are those of the
// part.

#include <cstdint>

#include "cc/c_api/tf_bn_ops_c.h"
#include "tests/fuzz/formula_call.h"
#include "tests/fuzz/input.h"

namespace {

using tf_bn_ops::Activation;
using tf_bn_ops::Call;
using tf_bn_ops::FormulaKind;
using tf_bn_ops::fuzz::Array;
using tf_bn_ops::fuzz::Doubles;
using tf_bn_ops::fuzz::Filler;
using tf_bn_ops::fuzz::RunCall;
using tf_bn_ops::fuzz::Same;
using tf_bn_ops::fuzz::Shape;

// What all parts with statistics have.
struct Attrs {
  Activation activation;
  double epsilon;
};
Call CallOf(const Shape& shape, FormulaKind formula, const Attrs& attrs) {
  Call args = shape.CallOf(formula);
  args.float64_statistics = 1;
  args.activation = attrs.activation;
  args.epsilon = attrs.epsilon;
  return args;
}

// Statistics of x, and of x as the only part of a batch.
void RunStats(const Shape& shape, const Array& x) {
  double count = -1, total = -1;
  Doubles mean(1 + shape.channels), m2(1 + shape.channels);
  Doubles all_mean(mean.size()), all_m2(m2.size());
  Call args = shape.CallOf(FormulaKind::kForward);
  args.x = x.data();
  args.local_count = &count;
  args.local_mean = mean.data();
  args.local_m2 = m2.data();
  RunCall(args);
  tfbn_gather_stats gather{};
  gather.parts = 1;
  gather.channels = shape.channels;
  gather.counts = &count;
  gather.means = mean.data();
  gather.m2s = m2.data();
  gather.count = &total;
  gather.mean = all_mean.data();
  gather.m2 = all_m2.data();
  char error[256];
  TFBN_FUZZ_CHECK(tfbn_cpu_gather_stats(&gather, error, sizeof(error)) == 0);
  TFBN_FUZZ_CHECK(count == total && Same(mean, all_mean, shape.channels) &&
                  Same(m2, all_m2, shape.channels));
}

// Parts with any counts: gathered, or refused with a sentence.
void RunGather(const Shape& shape, Filler* filler, size_t error_size) {
  const int64_t parts = shape.outer;
  const Doubles counts = filler->Wide(parts),
                means = filler->Wide(parts * shape.channels),
                m2s = filler->Wide(parts * shape.channels);
  double count;
  Doubles mean(1 + shape.channels), m2(1 + shape.channels);
  const tfbn_gather_stats args = {parts,        shape.channels, counts.data(),
                                  means.data(), m2s.data(),     &count,
                                  mean.data(),  m2.data()};
  tf_bn_ops::fuzz::CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_gather_stats(&args, error, error_size);
  });
}

// An activation that there is not, or a pointer that is missed.
bool Spoil(tf_bn_ops::fuzz::Input* input, Call* args) {
  switch (input->Take<uint8_t>() % 3) {
    case 0:
      return SpoilActivation(input, args);
    case 1:
      args->sum_dy = nullptr;
      return args->view.channels > 0;
    default:
      args->x_backprop = nullptr;
      return NumElements(args->view) > 0;
  }
}

// The outputs of a gradient.
struct Gradient {
  Doubles sum_dy, sum_dy_xmu;
  Array scale_backprop, offset_backprop, x_backprop;
};

void RunGradient(Call reduce, Call elemt, void* y, Gradient* out) {
  reduce.y = elemt.y = y;
  reduce.local_sum_dy = out->sum_dy.data();
  reduce.local_sum_dy_xmu = out->sum_dy_xmu.data();
  reduce.scale_backprop = out->scale_backprop.data();
  reduce.offset_backprop = out->offset_backprop.data();
  RunCall(reduce);
  elemt.sum_dy = out->sum_dy.data();
  elemt.sum_dy_xmu = out->sum_dy_xmu.data();
  elemt.x_backprop = out->x_backprop.data();
  RunCall(elemt);
}

void CheckSame(const Gradient& a, const Gradient& b, const Shape& shape) {
  TFBN_FUZZ_CHECK(Same(a.sum_dy, b.sum_dy, shape.channels));
  TFBN_FUZZ_CHECK(Same(a.sum_dy_xmu, b.sum_dy_xmu, shape.channels));
  TFBN_FUZZ_CHECK(Same(a.scale_backprop, b.scale_backprop, shape.stat_dtype,
                       shape.channels));
  TFBN_FUZZ_CHECK(Same(a.offset_backprop, b.offset_backprop, shape.stat_dtype,
                       shape.channels));
  TFBN_FUZZ_CHECK(
      Same(a.x_backprop, b.x_backprop, shape.dtype, shape.elements()));
}

// The attributes that the choices and the next bytes say.
Attrs TakeAttrs(uint8_t choices, tf_bn_ops::fuzz::Input* input) {
  const Activation activation = (choices & 16) != 0  ? Activation::kRelu6
                                : (choices & 8) != 0 ? Activation::kRelu
                                                     : Activation::kIdentity;
  return {activation, input->Take<double>()};
}

void SetInputs(const Array& x, const Array& scale, const Array& offset,
               const Doubles& mean, const Doubles& variance, Call* args) {
  args->x = x.data();
  args->scale = scale.data();
  args->offset = offset.data();
  args->mean = mean.data();
  args->variance = variance.data();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  const uint8_t choices = input.Take<uint8_t>();
  const Shape shape = TakeShape(choices, &input);
  const Attrs attrs = TakeAttrs(choices, &input);
  const double count = input.Take<double>();
  const size_t error_size = input.Take<uint8_t>() % 33;
  tf_bn_ops::fuzz::Input wrong = input;
  Filler filler(input.Rest());
  const auto view = [&] { return filler.View(shape); };
  const auto vector = [&] { return filler.Vector(shape); };
  const Array x = view(), scale = vector(), offset = vector();
  Array y_backprop = view(), y = view(), side = view();
  const Doubles mean = filler.Wide(shape.channels),
                variance = filler.Wide(shape.channels);
  RunStats(shape, x);
  RunGather(shape, &filler, error_size);

  Call forward = CallOf(shape, FormulaKind::kForward, attrs);
  forward.is_training = 0;
  SetInputs(x, scale, offset, mean, variance, &forward);
  forward.y = y.data();
  RunCall(forward);
  Call reduce = CallOf(shape, FormulaKind::kGradient, attrs);
  SetInputs(x, scale, offset, mean, variance, &reduce);
  reduce.y_backprop = y_backprop.data();
  Call elemt = CallOf(shape, FormulaKind::kGradient, attrs);
  elemt.is_training = 0;
  SetInputs(x, scale, offset, mean, variance, &elemt);
  elemt.y_backprop = y_backprop.data();
  elemt.count = &count;
  const auto gradient = [&] {
    return Gradient{Doubles(1 + shape.channels), Doubles(1 + shape.channels),
                    vector(), vector(), view()};
  };
  Gradient from_x = gradient(), from_y = gradient();
  RunGradient(reduce, elemt, nullptr, &from_x);
  RunGradient(reduce, elemt, y.data(), &from_y);
  CheckSame(from_x, from_y, shape);

  // In place, with the gradient of a side input.
  elemt.y = y.data();
  elemt.sum_dy = from_x.sum_dy.data();
  elemt.sum_dy_xmu = from_x.sum_dy_xmu.data();
  elemt.x_backprop = y.data();
  elemt.side_input_backprop = side.data();
  CheckWrong(elemt, &wrong, [&](Call* args) { return Spoil(&wrong, args); });
  RunCall(elemt);
  TFBN_FUZZ_CHECK(Same(y, from_y.x_backprop, shape.dtype, shape.elements()));
  return 0;
}
