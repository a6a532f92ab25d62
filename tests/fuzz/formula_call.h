// What the fuzz targets of the formulas share: sizes and types of a call,
// arrays filled with bytes of the input, their comparison, and arguments with a
// field that is wrong.

#ifndef TF_BN_OPS_TESTS_FUZZ_FORMULA_CALL_H_
#define TF_BN_OPS_TESTS_FUZZ_FORMULA_CALL_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/dtype.h"
#include "tests/fuzz/c_abi_call.h"
#include "tests/fuzz/input.h"

namespace tf_bn_ops {
namespace fuzz {

constexpr int kThreads = 2;

using Array = std::vector<uint8_t>;
using Doubles = std::vector<double>;

// A function of the C ABI that runs a formula.
template <typename Args>
using Function = int (*)(const Args*, const char*, int, char*, size_t);

// The sizes and types of a call, small enough to be run.
struct Shape {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int64_t elements() const { return outer * channels * inner; }

  // Sets the fields that all formulas have.
  template <typename Args>
  Args Common() const {
    Args args{};
    args.outer = outer;
    args.channels = channels;
    args.inner = inner;
    args.dtype = dtype;
    args.stat_dtype = stat_dtype;
    return args;
  }
};

// The shape in the next bytes; the lowest bits of `choices` say its types.
inline Shape TakeShape(uint8_t choices, Input* input) {
  Shape shape;
  shape.outer = input->Take<uint8_t>() % 40;
  shape.channels = input->Take<uint8_t>() % 20;
  shape.inner = input->Take<uint8_t>() % 20;
  shape.dtype = choices & 3;
  shape.stat_dtype = (choices & 4) != 0 ? TFBN_FLOAT64 : TFBN_FLOAT32;
  return shape;
}

// Arrays filled with bytes of the input, over and over; at least one byte, so
// that the pointer of an empty array is not NULL.
class Filler {
 public:
  explicit Filler(std::string bytes) : bytes_(std::move(bytes)) {}

  Array Elements(int64_t count, int32_t dtype) {
    Array array(1 + count * SizeOf(static_cast<DType>(dtype)));
    for (uint8_t& byte : array) byte = Next();
    return array;
  }
  Array View(const Shape& shape) {
    return Elements(shape.elements(), shape.dtype);
  }
  Array Vector(const Shape& shape) {
    return Elements(shape.channels, shape.stat_dtype);
  }
  Doubles Wide(int64_t count) {
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
inline bool Same(double x, double y) {
  return std::memcmp(&x, &y, sizeof(x)) == 0 || (x != x && y != y);
}
inline bool Same(const Array& a, const Array& b, int32_t dtype, int64_t count) {
  const auto type = static_cast<DType>(dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (!Same(LoadAsDouble(type, a.data(), i),
              LoadAsDouble(type, b.data(), i))) {
      return false;
    }
  }
  return true;
}
inline bool Same(const Doubles& a, const Doubles& b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!Same(a[i], b[i])) return false;
  }
  return true;
}

template <typename Args>
void RunFormula(Function<Args> function, const Args& args,
                int threads = kThreads) {
  char error[256];
  TFBN_FUZZ_CHECK(function(&args, nullptr, threads, error, sizeof(error)) == 0);
}

// Makes a field wrong that all formulas have, or what `further` does, which
// returns false if nothing is wrong: refused with a sentence.
template <typename Args, typename Further>
void CheckWrong(Function<Args> function, Args args, Input* input,
                const Further& further) {
  switch (input->Take<uint8_t>() % 4) {
    case 0:
      args.dtype = 4 + input->Take<uint8_t>();
      break;
    case 1:
      args.stat_dtype = -1 - int32_t{input->Take<uint8_t>()};
      break;
    case 2:
      args.outer = -1 - int64_t{input->Take<uint8_t>()};
      break;
    default:
      if (!further(&args)) return;
  }
  const size_t error_size = input->Take<uint8_t>() % 33;
  const int status = CheckCall(error_size, [&](char* error) {
    return function(&args, nullptr, kThreads, error, error_size);
  });
  TFBN_FUZZ_CHECK(status == 1);
}

// For CheckWrong: an activation that there is not, if the input has one.
template <typename Args>
bool SpoilActivation(Input* input, Args* args) {
  args->activation = input->Take<int32_t>();
  return args->activation < 0 || args->activation > TFBN_RELU6;
}

}  // namespace fuzz
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_TESTS_FUZZ_FORMULA_CALL_H_
