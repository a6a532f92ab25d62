// What the fuzz targets share: values from the bytes that a fuzzer generates.

#ifndef TF_BN_OPS_TESTS_FUZZ_INPUT_H_
#define TF_BN_OPS_TESTS_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace tf_bn_ops {
namespace fuzz {

// Ends the process where a check fails; the fuzzer keeps the input.
#ifndef TFBN_FUZZ_CHECK
#define TFBN_FUZZ_CHECK(condition) \
  if (!(condition)) __builtin_trap()
#endif

// Past the end, every value is 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : next_(data), left_(size) {}

  template <typename T>
  T Take() {
    T value{};
    const size_t bytes = left_ < sizeof(T) ? left_ : sizeof(T);
    if (bytes > 0) std::memcpy(&value, next_, bytes);
    next_ += bytes;
    left_ -= bytes;
    return value;
  }

  std::string Rest() {
    std::string rest(reinterpret_cast<const char*>(next_), left_);
    left_ = 0;
    return rest;
  }

 private:
  const uint8_t* next_;
  size_t left_;
};

}  // namespace fuzz
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_TESTS_FUZZ_INPUT_H_
