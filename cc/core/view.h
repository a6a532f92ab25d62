// The one picture of the data that everything below the op kernels works on.
//
//     layout                        outer      channels   inner
//     NHWC, NDHWC (channels last)   N*D*H*W    C          1
//     NCHW, NCDHW, (N, C, ...)      N          C          D*H*W
//
// A view is contiguous: element (o, c, i) lies at (o * channels + c) * inner +
// i.

#pragma once

#include <cstdint>

#include "cc/core/host_device.h"

namespace tf_bn_ops {

struct View {
  int64_t outer = 0;
  int64_t channels = 0;
  int64_t inner = 0;
};

// Elements in the whole tensor.
static TFBN_HD int64_t NumElements(const View& v) {
  return v.outer * v.channels * v.inner;
}

// M of the formulas: elements that share a channel.
static TFBN_HD int64_t ElementsPerChannel(const View& v) {
  return v.outer * v.inner;
}

static TFBN_HD int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tf_bn_ops
