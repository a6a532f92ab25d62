// vec_neon.h with the conversion to bfloat16 of Arm's BF16 extension.

#ifndef TF_BN_OPS_CC_CPU_ISA_VEC_NEONBF16_H_
#define TF_BN_OPS_CC_CPU_ISA_VEC_NEONBF16_H_

#define TFBN_VEC_NEONBF16
#include "cc/cpu/isa/vec_neon.h"

namespace tf_bn_ops {
namespace {

TFBN_INLINE V16 NarrowBfloat16(VF v) {
  return (V16)vcvt_bf16_f32((float32x4_t)v);
}

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_VEC_NEONBF16_H_
