// The CPU backend of the batch-norm gradients of first and second order:
// spreads the fixed partition of a view over threads.

#ifndef TF_BN_OPS_CC_CPU_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_CPU_BATCH_NORM_GRAD_H_

#include <cstddef>

#include "cc/core/executor.h"
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "cc/cpu/implementation.h"

namespace tf_bn_ops {

// Bytes of scratch memory that CpuBatchNormGrad needs: per channel 16 for each
// block of the partition, 48 for the coefficients. At most 1 MiB and 64 bytes
// per channel.
size_t CpuBatchNormGradWorkspace(const View& view);

// Computes the outputs of `args`. `workspace` is aligned to 8 bytes and holds
// CpuBatchNormGradWorkspace(args.view) bytes. The bits of the results depend on
// neither `threads` nor, among the instruction-set builds, on `implementation`.
void CpuBatchNormGrad(const BatchNormGradArgs& args,
                      const Implementation& implementation, Executor& threads,
                      void* workspace);

// The same for the second order. Scratch memory: per channel 56 bytes for each
// block, 104 for the coefficients; at most 3.5 MiB and 160 bytes per channel.
size_t CpuBatchNormGradGradWorkspace(const View& view);
void CpuBatchNormGradGrad(const BatchNormGradGradArgs& args,
                          const Implementation& implementation,
                          Executor& threads, void* workspace);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_BATCH_NORM_GRAD_H_
