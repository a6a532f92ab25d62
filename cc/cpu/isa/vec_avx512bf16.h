// vec_avx512.h with the conversion to bfloat16 of AVX-512 BF16.

#ifndef TF_BN_OPS_CC_CPU_ISA_VEC_AVX512BF16_H_
#define TF_BN_OPS_CC_CPU_ISA_VEC_AVX512BF16_H_

#define TFBN_VEC_AVX512BF16
#include "cc/cpu/isa/vec_avx512.h"

namespace tf_bn_ops {
namespace {

// The instruction flushes subnormals, of which there are none in the results of
// arithmetic that flushes them itself (cc/core/fp_env.h).
TFBN_INLINE V16 NarrowBfloat16(VF v) { return (V16)_mm512_cvtneps_pbh(v); }

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_VEC_AVX512BF16_H_
