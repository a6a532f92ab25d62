// The plainest possible batch-norm gradient: double arithmetic, one loop over
// the formula. It judges the fast kernels in tests and is the last entry of the
// CPU's list of implementations.

#ifndef TF_BN_OPS_CC_CORE_REFERENCE_H_
#define TF_BN_OPS_CC_CORE_REFERENCE_H_

#include "cc/core/batch_norm_grad.h"

namespace tf_bn_ops {

// Computes all three outputs of `args` (see BatchNormGradArgs) on the calling
// thread.
void ReferenceBatchNormGrad(const BatchNormGradArgs& args);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_REFERENCE_H_
