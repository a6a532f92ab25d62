// The Specs of all ops.

#ifndef TF_BN_OPS_CC_OPS_OP_SPECS_H_
#define TF_BN_OPS_CC_OPS_OP_SPECS_H_

#include "cc/ops/batch_norm_training_backprop.h"
#include "cc/ops/fused_batch_norm.h"
#include "cc/ops/fused_batch_norm_grad.h"
#include "cc/ops/fused_batch_norm_grad_ex.h"
#include "cc/ops/fused_batch_norm_grad_grad.h"
#include "cc/ops/split_op_specs.h"

#endif  // TF_BN_OPS_CC_OPS_OP_SPECS_H_
