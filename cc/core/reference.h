// The plainest possible batch-norm gradients: double arithmetic, loops over the
// formulas. It judges the fast kernels in tests and is the last entry of the
// CPU's list of implementations.

#ifndef TF_BN_OPS_CC_CORE_REFERENCE_H_
#define TF_BN_OPS_CC_CORE_REFERENCE_H_

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"

namespace tf_bn_ops {

// Computes all three outputs of `args` on the calling thread. The view must not
// be empty, and the second order not in place.
void ReferenceBatchNormGrad(const BatchNormGradArgs& args);
void ReferenceBatchNormGradGrad(const BatchNormGradGradArgs& args);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_REFERENCE_H_
