// Fuzz target: batch normalization with an activation through the C ABI, and
// the gradient behind it.
//
// Promised: no crash and no access outside the arrays for any numbers in them
// and any arguments that are refused; one sentence for those that are; bitwise
// the same gradient with the mask from x by the forward's coefficients as with
// the mask from y, in place over y too.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/dtype.h"
#include "cc/core/formulas/batch_norm.h"
#include "cc/fuzz/c_abi_call.h"
#include "cc/fuzz/input.h"

namespace {

using tf_bn_ops::DType;
using Array = std::vector<uint8_t>;

constexpr int kThreads = 2;

// The sizes and types of a call, small enough to be run.
struct Shape {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int64_t elements() const { return outer * channels * inner; }
};

// At least one byte, so that the pointer of an empty array is not NULL. Filled
// with bytes of the input, over and over.
Array Filled(int64_t count, int32_t dtype, const std::string& bytes,
             size_t* next) {
  Array array(1 + count * tf_bn_ops::SizeOf(static_cast<DType>(dtype)));
  for (uint8_t& byte : array) {
    byte = bytes.empty() ? 0x3f : bytes[(*next)++ % bytes.size()];
  }
  return array;
}

// Bitwise, but for the payload of NaN.
bool Same(const Array& a, const Array& b, int32_t dtype, int64_t count) {
  if (std::memcmp(a.data(), b.data(), a.size() - 1) == 0) return true;
  for (int64_t i = 0; i < count; ++i) {
    const auto type = static_cast<DType>(dtype);
    const double x = tf_bn_ops::LoadAsDouble(type, a.data(), i);
    const double y = tf_bn_ops::LoadAsDouble(type, b.data(), i);
    if (std::memcmp(&x, &y, sizeof(x)) != 0 && !(x != x && y != y))
      return false;
  }
  return true;
}

// The outputs of a gradient.
struct Gradient {
  Array x_backprop, scale_backprop, offset_backprop;
};

void RunGradient(tfbn_batch_norm_grad_ex_args args, Gradient* out) {
  args.x_backprop = out->x_backprop.data();
  args.scale_backprop = out->scale_backprop.data();
  args.offset_backprop = out->offset_backprop.data();
  char error[256];
  TFBN_FUZZ_CHECK(tfbn_cpu_batch_norm_grad_ex(&args, nullptr, kThreads, error,
                                              sizeof(error)) == 0);
}

void CheckSame(const Gradient& a, const Gradient& b, const Shape& shape) {
  TFBN_FUZZ_CHECK(
      Same(a.x_backprop, b.x_backprop, shape.dtype, shape.elements()));
  TFBN_FUZZ_CHECK(Same(a.scale_backprop, b.scale_backprop, shape.stat_dtype,
                       shape.channels));
  TFBN_FUZZ_CHECK(Same(a.offset_backprop, b.offset_backprop, shape.stat_dtype,
                       shape.channels));
}

// Any field that may be wrong: refused with a sentence, or fine.
void RunWrong(tfbn_batch_norm_grad_ex_args args,
              tf_bn_ops::fuzz::Input* input) {
  switch (input->Take<uint8_t>() % 4) {
    case 0:
      args.activation = input->Take<int32_t>();
      if (args.activation >= 0 && args.activation < 3) return;
      break;
    case 1:
      args.dtype = 4 + input->Take<uint8_t>();
      break;
    case 2:
      args.outer = -1 - int64_t{input->Take<uint8_t>()};
      break;
    default:
      if (args.outer * args.channels * args.inner == 0) return;
      args.y = nullptr;
  }
  const size_t error_size = input->Take<uint8_t>() % 33;
  const int status = tf_bn_ops::fuzz::CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_batch_norm_grad_ex(&args, nullptr, kThreads, error,
                                       error_size);
  });
  TFBN_FUZZ_CHECK(status == 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  const uint8_t choices = input.Take<uint8_t>();
  const Shape shape = {input.Take<uint8_t>() % 40, input.Take<uint8_t>() % 20,
                       input.Take<uint8_t>() % 20, choices & 3,
                       (choices & 4) != 0 ? TFBN_FLOAT64 : TFBN_FLOAT32};
  tfbn_batch_norm_args forward{};
  forward.outer = shape.outer;
  forward.channels = shape.channels;
  forward.inner = shape.inner;
  forward.dtype = shape.dtype;
  forward.stat_dtype = shape.stat_dtype;
  forward.is_training = (choices & 8) != 0;
  forward.activation = (choices & 16) != 0 ? TFBN_RELU6 : TFBN_RELU;
  forward.epsilon = input.Take<double>();
  forward.exponential_avg_factor = 1;
  tfbn_batch_norm_grad_ex_args gradient{};
  tf_bn_ops::fuzz::Input wrong = input;
  const std::string bytes = input.Rest();

  size_t next = 0;
  const auto view = [&] {
    return Filled(shape.elements(), shape.dtype, bytes, &next);
  };
  const auto vector = [&] {
    return Filled(shape.channels, shape.stat_dtype, bytes, &next);
  };
  const Array x = view(), y_backprop = view(), scale = vector(),
              offset = vector(), mean = vector(), variance = vector();
  Array y = view(), batch_mean = vector(), batch_variance = vector(),
        saved_mean = vector(), saved_variance = vector();
  Array coefficients = Filled(
      tf_bn_ops::kNumForwardCoefficients * shape.channels,
      shape.dtype == TFBN_FLOAT64 ? TFBN_FLOAT64 : TFBN_FLOAT32, bytes, &next);
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
  char error[256];
  TFBN_FUZZ_CHECK(tfbn_cpu_batch_norm(&forward, nullptr, kThreads, error,
                                      sizeof(error)) == 0);

  gradient.outer = shape.outer;
  gradient.channels = shape.channels;
  gradient.inner = shape.inner;
  gradient.dtype = shape.dtype;
  gradient.stat_dtype = shape.stat_dtype;
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
  RunWrong(gradient, &wrong);

  // In place, with the gradient of a side input.
  gradient.x_backprop = y.data();
  Array side = view();
  gradient.side_input_backprop = side.data();
  TFBN_FUZZ_CHECK(tfbn_cpu_batch_norm_grad_ex(&gradient, nullptr, kThreads,
                                              error, sizeof(error)) == 0);
  CheckSame({y, from_x.scale_backprop, from_x.offset_backprop}, from_y, shape);
  return 0;
}
