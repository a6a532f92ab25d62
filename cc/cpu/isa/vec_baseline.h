// Vectors of 16 bytes on any machine: SSE2 where it is present, as on every
// x86-64, else vector extensions alone.

#ifndef TF_BN_OPS_CC_CPU_ISA_VEC_BASELINE_H_
#define TF_BN_OPS_CC_CPU_ISA_VEC_BASELINE_H_

namespace tf_bn_ops {
namespace {
constexpr int kVectorBytes = 16;
constexpr int kRegisters = 16;
}  // namespace
}  // namespace tf_bn_ops

#include "cc/cpu/isa/vec_portable.h"

namespace tf_bn_ops {
namespace {
namespace baseline {

using namespace portable;

#if defined(__SSE2__)
TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm_cvtps_pd(v), _mm_cvtps_pd(_mm_movehl_ps(v, v))}};
}

using portable::StoreNonTemporalBits;
TFBN_INLINE void StoreNonTemporalBits(void* p, VF v) {
  _mm_stream_ps(static_cast<float*>(p), v);
}
TFBN_INLINE void StoreNonTemporalBits(void* p, VD v) {
  _mm_stream_pd(static_cast<double*>(p), v);
}
TFBN_INLINE void StoreNonTemporalBits(void* p, V16 v) {
  long long bits;
  std::memcpy(&bits, &v, sizeof(bits));
  _mm_stream_si64(static_cast<long long*>(p), bits);
}
TFBN_INLINE void NonTemporalFence() { _mm_sfence(); }
#endif

}  // namespace baseline
}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_VEC_BASELINE_H_
