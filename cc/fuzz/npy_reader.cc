// Fuzz target: the .npy reader.
//
// Promised: no crash, and either one sentence, or an array that is all of the
// file behind its header.

#include <string>

#include "cc/fuzz/input.h"
#include "cc/tools/npy_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  tf_bn_ops::npy::Array array;
  if (!tf_bn_ops::npy::Parse(input.Rest(), &array).empty()) return 0;
  TFBN_FUZZ_CHECK(array.data <= size && array.bytes == size - array.data);
  TFBN_FUZZ_CHECK(array.shape.size() <= tf_bn_ops::npy::kMaxDimensions);
  size_t elements = 1;
  for (int64_t dimension : array.shape) {
    TFBN_FUZZ_CHECK(dimension >= 0);
    elements *= static_cast<size_t>(dimension);
  }
  TFBN_FUZZ_CHECK(elements == 0 ? array.bytes == 0
                                : array.bytes % elements == 0);
  return 0;
}
