// Vectors of 16 bytes on any machine: SSE2 where it is present, as on every
// x86-64, else vector extensions alone.

#pragma once

#define TFBN_VECTOR_BYTES 16
#define TFBN_REGISTERS 16
#include "cc/cpu/isa/vec_portable.h"

namespace tf_bn_ops {
namespace {
namespace baseline {

using namespace portable;

#if defined(__SSE2__)
TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm_cvtps_pd(v), _mm_cvtps_pd(_mm_movehl_ps(v, v))}};
}
#endif

}  // namespace baseline
}  // namespace
}  // namespace tf_bn_ops
