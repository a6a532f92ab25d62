// The check of a call of the C ABI by a fuzz target.

#ifndef TF_BN_OPS_TESTS_FUZZ_C_ABI_CALL_H_
#define TF_BN_OPS_TESTS_FUZZ_C_ABI_CALL_H_

#include <cstddef>
#include <cstring>

#include "tests/fuzz/input.h"

namespace tf_bn_ops {
namespace fuzz {

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

#endif  // TF_BN_OPS_TESTS_FUZZ_C_ABI_CALL_H_
