// vec_neon.h with the conversion to bfloat16 of Arm's BF16 extension.

#pragma once

#include "cc/cpu/isa/vec_neon.h"

namespace tf_bn_ops {
namespace {
namespace neonbf16 {

using namespace neon;

constexpr bool kBfloat16Alone = true;

// The instruction flushes subnormals, which elements that are passed on keep.
TFBN_INLINE V16 NarrowBfloat16(VF v) {
  const uint32x4_t bits = (uint32x4_t)v;
  const uint32x4_t normal = vtstq_u32(bits, vdupq_n_u32(0x7f800000));
  return (V16)vbsl_u16(vmovn_u32(normal),
                       (uint16x4_t)vcvt_bf16_f32((float32x4_t)v),
                       vshrn_n_u32(bits, 16));
}

}  // namespace neonbf16
}  // namespace
}  // namespace tf_bn_ops
