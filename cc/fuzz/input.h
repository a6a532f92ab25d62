// What the fuzz targets share: values from the bytes that a fuzzer generates,
// and the check of a call of the C ABI.

#ifndef TF_BN_OPS_CC_FUZZ_INPUT_H_
#define TF_BN_OPS_CC_FUZZ_INPUT_H_

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

// The largest error_size that CheckCall takes.
constexpr size_t kMaxErrorSize = 64;

// The status of run(error), a call with an error buffer of `error_size` bytes:
// one sentence within the buffer where it fails, and nothing behind it.
template <typename Run>
int CheckCall(size_t error_size, const Run& run) {
  char error[kMaxErrorSize];
  std::memset(error, 'x', sizeof(error));
  const int status = run(error);
  TFBN_FUZZ_CHECK(status == 0 || status == 1);
  if (status == 1 && error_size > 0) {
    TFBN_FUZZ_CHECK(std::memchr(error, 0, error_size));
  }
  for (size_t i = error_size; i < sizeof(error); ++i) {
    TFBN_FUZZ_CHECK(error[i] == 'x');
  }
  return status;
}

}  // namespace fuzz
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_FUZZ_INPUT_H_
