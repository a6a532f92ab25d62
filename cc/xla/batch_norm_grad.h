// What the two ways of compiling the batch-norm gradient (cpu_call.h, hlo.h)
// are given and produce. The contract is that of
// cc/core/formulas/batch_norm_grad.h.

#ifndef TF_BN_OPS_CC_XLA_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_XLA_BATCH_NORM_GRAD_H_

#include "cc/core/view.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_bn_ops {

// What a kernel is given, as values of a computation that is being built.
struct XlaBatchNormGradArgs {
  View view;            // Of x.
  int channel_dim = 0;  // The dimension of x that is view.channels.
  bool is_training = true;
  bool variance_is_rstd = false;
  double epsilon = 0;

  xla::XlaOp y_backprop, x;          // The shape of x.
  xla::XlaOp scale, mean, variance;  // [channels]
  xla::Shape shape;                  // Of x.
  xla::Shape stat_shape;             // Of scale.
};

struct XlaBatchNormGrad {
  xla::XlaOp x_backprop;
  xla::XlaOp scale_backprop;
  xla::XlaOp offset_backprop;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_BATCH_NORM_GRAD_H_
