// The naive reference: a formula in double, with compensated sums, one element
// after the other. Tests judge the kernels by it, and it is the last entry of
// the CPU's list of implementations.

#ifndef TF_BN_OPS_CC_CORE_REFERENCE_H_
#define TF_BN_OPS_CC_CORE_REFERENCE_H_

#include "cc/core/call.h"

namespace tf_bn_ops {

// Computes all outputs of `call`, a view with elements, on the calling thread.
template <typename F>
void RunReference(const Call& call);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_REFERENCE_H_
