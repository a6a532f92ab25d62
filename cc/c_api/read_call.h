// What is wrong with a call of the C ABI, and how it says so: the checks of
// every backend.

#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include "cc/core/call.h"
#include "cc/core/view.h"

namespace tf_bn_ops::c_api {

// Calls run(), which returns one sentence, or an empty one for success, writes
// it to the caller's buffer, if there is one, and returns the status.
template <typename Run>
int Report(char* error, size_t error_size, const Run& run) {
  const auto fail = [&](const char* begin, const char* end) {
    if (error != nullptr && error_size > 0) {
      std::snprintf(error, error_size, "%s%s", begin, end);
    }
    return 1;
  };
  try {
    const std::string sentence = run();
    return sentence.empty() ? 0 : fail("", sentence.c_str());
  } catch (const std::exception& e) {
    // No memory or no threads; nothing else throws. To say so takes no memory.
    return fail("the system refused: ", e.what());
  }
}

// Each returns one sentence, or empty where a backend can run what is given.
std::string CheckDType(DType dtype, const char* name);
std::string CheckView(const View& view);
// Sizes, types, arrays that the formula needs, their alignment.
std::string CheckCall(const tfbn_call* call);
// Reads no count: they may be in device memory.
std::string CheckGatherStats(const tfbn_gather_stats* args);

}  // namespace tf_bn_ops::c_api
