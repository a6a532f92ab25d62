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
#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "tests/fuzz/c_abi_call.h"
#include "tests/fuzz/input.h"

namespace tf_bn_ops {
namespace fuzz {

constexpr int kThreads = 2;

using Array = std::vector<uint8_t>;
using Doubles = std::vector<double>;

// The sizes and types of a call, small enough to be run.
struct Shape {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int64_t elements() const { return outer * channels * inner; }

  // A call of this shape, without arrays.
  Call CallOf(FormulaKind formula) const {
    Call call;
    call.formula = formula;
    call.view = {outer, channels, inner};
    call.dtype = static_cast<DType>(dtype);
    call.stat_dtype = static_cast<DType>(stat_dtype);
    return call;
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

inline void RunCall(const Call& call, int threads = kThreads) {
  char error[256];
  TFBN_FUZZ_CHECK(tfbn_cpu_run(&call, nullptr, threads, error, sizeof(error)) ==
                  0);
}

// Makes a field wrong that all formulas have, or what `further` does, which
// returns false if nothing is wrong: refused with a sentence.
template <typename Further>
void CheckWrong(Call call, Input* input, const Further& further) {
  switch (input->Take<uint8_t>() % 4) {
    case 0:
      call.dtype = static_cast<DType>(4 + input->Take<uint8_t>());
      break;
    case 1:
      call.stat_dtype =
          static_cast<DType>(-1 - int32_t{input->Take<uint8_t>()});
      break;
    case 2:
      call.view.outer = -1 - int64_t{input->Take<uint8_t>()};
      break;
    default:
      if (!further(&call)) return;
  }
  const size_t error_size = input->Take<uint8_t>() % 33;
  const int status = CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_run(&call, nullptr, kThreads, error, error_size);
  });
  TFBN_FUZZ_CHECK(status == 1);
}

// For CheckWrong: an activation that there is not, if the input has one.
inline bool SpoilActivation(Input* input, Call* call) {
  const auto activation = input->Take<int32_t>();
  call->activation = static_cast<Activation>(activation);
  return activation < 0 || activation > TFBN_RELU6;
}

}  // namespace fuzz
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_TESTS_FUZZ_FORMULA_CALL_H_
