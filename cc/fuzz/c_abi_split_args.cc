// Fuzz target: the parts of synchronised batch normalization through the C ABI.
//
// Promised: no crash and no access outside the arrays for any numbers in them
// and any arguments that are refused; one sentence for those that are; the
// gradient is bitwise the same with the mask from x as with the mask from y,
// and in place; statistics that are gathered from one part are those of the
// part.

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
using Doubles = std::vector<double>;

constexpr int kThreads = 2;

// The sizes and types of a call, small enough to be run.
struct Shape {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype, activation;
  double epsilon;
  int64_t elements() const { return outer * channels * inner; }

  // Sets the fields that all parts with statistics have.
  template <typename Args>
  Args Common() const {
    Args args{};
    args.outer = outer;
    args.channels = channels;
    args.inner = inner;
    args.dtype = dtype;
    args.stat_dtype = stat_dtype;
    args.activation = activation;
    args.epsilon = epsilon;
    return args;
  }
};

// Arrays filled with bytes of the input, over and over; at least one byte, so
// that the pointer of an empty array is not NULL.
class Filler {
 public:
  explicit Filler(std::string bytes) : bytes_(std::move(bytes)) {}

  Array Elements(int64_t count, int32_t dtype) {
    Array array(1 + count * tf_bn_ops::SizeOf(static_cast<DType>(dtype)));
    for (uint8_t& byte : array) byte = Next();
    return array;
  }
  Doubles Vector(int64_t count) {
    Doubles array(1 + count);
    for (double& value : array) {
      uint8_t raw[sizeof(double)];
      for (uint8_t& byte : raw) byte = Next();
      std::memcpy(&value, raw, sizeof(value));
    }
    return array;
  }

 private:
  uint8_t Next() {
    return bytes_.empty() ? 0x3f : bytes_[next_++ % bytes_.size()];
  }
  const std::string bytes_;
  size_t next_ = 0;
};

// Bitwise, but for the payload of NaN.
bool SameNumber(double x, double y) {
  return std::memcmp(&x, &y, sizeof(x)) == 0 || (x != x && y != y);
}
bool Same(const Array& a, const Array& b, int32_t dtype, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto type = static_cast<DType>(dtype);
    if (!SameNumber(tf_bn_ops::LoadAsDouble(type, a.data(), i),
                    tf_bn_ops::LoadAsDouble(type, b.data(), i))) {
      return false;
    }
  }
  return true;
}
bool Same(const Doubles& a, const Doubles& b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!SameNumber(a[i], b[i])) return false;
  }
  return true;
}

template <typename Args>
void RunPart(int (*part)(const Args*, const char*, int, char*, size_t),
             const Args& args) {
  char error[256];
  TFBN_FUZZ_CHECK(part(&args, nullptr, kThreads, error, sizeof(error)) == 0);
}

// Statistics of x, and of x as the only part of a batch.
void RunStats(const Shape& shape, const Array& x) {
  double count = -1, total = -1;
  Doubles mean(1 + shape.channels), m2(1 + shape.channels);
  Doubles all_mean(mean.size()), all_m2(m2.size());
  tfbn_batch_norm_stats_args args{};
  args.outer = shape.outer;
  args.channels = shape.channels;
  args.inner = shape.inner;
  args.dtype = shape.dtype;
  args.x = x.data();
  args.count = &count;
  args.mean = mean.data();
  args.m2 = m2.data();
  RunPart(tfbn_cpu_batch_norm_stats, args);
  tfbn_batch_norm_gather_stats_args gather{};
  gather.parts = 1;
  gather.channels = shape.channels;
  gather.counts = &count;
  gather.means = mean.data();
  gather.m2s = m2.data();
  gather.count = &total;
  gather.mean = all_mean.data();
  gather.m2 = all_m2.data();
  char error[256];
  TFBN_FUZZ_CHECK(
      tfbn_cpu_batch_norm_gather_stats(&gather, error, sizeof(error)) == 0);
  TFBN_FUZZ_CHECK(count == total && Same(mean, all_mean, shape.channels) &&
                  Same(m2, all_m2, shape.channels));
}

// Parts with any counts: gathered, or refused with a sentence.
void RunGather(const Shape& shape, Filler* filler, size_t error_size) {
  const int64_t parts = shape.outer;
  const Doubles counts = filler->Vector(parts),
                means = filler->Vector(parts * shape.channels),
                m2s = filler->Vector(parts * shape.channels);
  double count;
  Doubles mean(1 + shape.channels), m2(1 + shape.channels);
  const tfbn_batch_norm_gather_stats_args args = {
      parts,      shape.channels, counts.data(), means.data(),
      m2s.data(), &count,         mean.data(),   m2.data()};
  tf_bn_ops::fuzz::CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_batch_norm_gather_stats(&args, error, error_size);
  });
}

// Any field that may be wrong: refused with a sentence, or fine.
void RunWrong(tfbn_batch_norm_backward_elemt_args args,
              tf_bn_ops::fuzz::Input* input) {
  switch (input->Take<uint8_t>() % 5) {
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
    case 3:
      if (args.channels == 0) return;
      args.sum_dy = nullptr;
      break;
    default:
      if (args.outer * args.channels * args.inner == 0) return;
      args.x_backprop = nullptr;
  }
  const size_t error_size = input->Take<uint8_t>() % 33;
  const int status = tf_bn_ops::fuzz::CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_batch_norm_backward_elemt(&args, nullptr, kThreads, error,
                                              error_size);
  });
  TFBN_FUZZ_CHECK(status == 1);
}

// The outputs of a gradient.
struct Gradient {
  Doubles sum_dy, sum_dy_xmu;
  Array scale_backprop, offset_backprop, x_backprop;
};

void RunGradient(tfbn_batch_norm_backward_reduce_args reduce,
                 tfbn_batch_norm_backward_elemt_args elemt, const void* y,
                 Gradient* out) {
  reduce.y = elemt.y = y;
  reduce.sum_dy = out->sum_dy.data();
  reduce.sum_dy_xmu = out->sum_dy_xmu.data();
  reduce.scale_backprop = out->scale_backprop.data();
  reduce.offset_backprop = out->offset_backprop.data();
  RunPart(tfbn_cpu_batch_norm_backward_reduce, reduce);
  elemt.sum_dy = out->sum_dy.data();
  elemt.sum_dy_xmu = out->sum_dy_xmu.data();
  elemt.x_backprop = out->x_backprop.data();
  RunPart(tfbn_cpu_batch_norm_backward_elemt, elemt);
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

template <typename Args>
void SetInputs(const Array& x, const Array& scale, const Array& offset,
               const Doubles& mean, const Doubles& variance, Args* args) {
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
  const Shape shape = {input.Take<uint8_t>() % 40,
                       input.Take<uint8_t>() % 20,
                       input.Take<uint8_t>() % 20,
                       choices & 3,
                       (choices & 4) != 0 ? TFBN_FLOAT64 : TFBN_FLOAT32,
                       (choices & 16) != 0  ? TFBN_RELU6
                       : (choices & 8) != 0 ? TFBN_RELU
                                            : TFBN_IDENTITY,
                       input.Take<double>()};
  const double count = input.Take<double>();
  const size_t error_size = input.Take<uint8_t>() % 33;
  tf_bn_ops::fuzz::Input wrong = input;
  Filler filler(input.Rest());
  const auto view = [&] {
    return filler.Elements(shape.elements(), shape.dtype);
  };
  const auto vector = [&] {
    return filler.Elements(shape.channels, shape.stat_dtype);
  };
  const Array x = view(), scale = vector(), offset = vector();
  Array y_backprop = view(), y = view(), side = view();
  const Doubles mean = filler.Vector(shape.channels),
                variance = filler.Vector(shape.channels);
  RunStats(shape, x);
  RunGather(shape, &filler, error_size);

  auto forward = shape.Common<tfbn_batch_norm_elemt_args>();
  SetInputs(x, scale, offset, mean, variance, &forward);
  forward.y = y.data();
  RunPart(tfbn_cpu_batch_norm_elemt, forward);
  auto reduce = shape.Common<tfbn_batch_norm_backward_reduce_args>();
  SetInputs(x, scale, offset, mean, variance, &reduce);
  reduce.y_backprop = y_backprop.data();
  auto elemt = shape.Common<tfbn_batch_norm_backward_elemt_args>();
  SetInputs(x, scale, offset, mean, variance, &elemt);
  elemt.y_backprop = y_backprop.data();
  elemt.count = count;
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
  RunWrong(elemt, &wrong);
  RunPart(tfbn_cpu_batch_norm_backward_elemt, elemt);
  TFBN_FUZZ_CHECK(Same(y, from_y.x_backprop, shape.dtype, shape.elements()));
  return 0;
}
