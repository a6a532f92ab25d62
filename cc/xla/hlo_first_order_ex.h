// The gradient behind an activation in XLA's own operations, for any device:
// the formula of cc/core/formulas/gradient.h with the mask from y.

#ifndef TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_EX_H_
#define TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_EX_H_

#include <vector>

#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"
#include "cc/xla/hlo_first_order.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// The attributes and inputs of cc/core's Call, inputs as values
// of the computation that is being built.
struct XlaBatchNormGradExArgs : XlaBatchNormGradArgs {
  using Call = BatchNormGradExFromYFormula;

  Activation activation = Activation::kIdentity;
  xla::XlaOp offset;  // Read by hlo_split.h alone.
  xla::XlaOp y;       // The shape of x, read with an activation.
};
// The same with the gradient of a side input.
struct XlaBatchNormGradExAddArgs : XlaBatchNormGradExArgs {
  using Call = BatchNormGradExAddFormula;
};

// y_backprop where the activation passes it.
inline xla::XlaOp BuildMasked(const XlaBatchNormGradExArgs& args) {
  if (args.activation == Activation::kIdentity) return args.y_backprop;
  const auto bound = [&](double value) {
    return xla::ScalarLike(args.y, value);
  };
  xla::XlaOp passes = xla::Gt(args.y, bound(LowerBound(args.activation)));
  if (args.activation == Activation::kRelu6) {
    passes =
        xla::And(passes, xla::Lt(args.y, bound(UpperBound(args.activation))));
  }
  return xla::Select(passes, args.y_backprop, xla::ZerosLike(args.y_backprop));
}

// x_backprop, scale_backprop, offset_backprop
inline std::vector<xla::XlaOp> BuildHlo(const XlaBatchNormGradExArgs& args) {
  XlaBatchNormGradArgs masked = args;
  masked.y_backprop = BuildMasked(args);
  return BuildHlo(masked);
}

// x_backprop, scale_backprop, offset_backprop, side_input_backprop
inline std::vector<xla::XlaOp> BuildHlo(const XlaBatchNormGradExAddArgs& args) {
  XlaBatchNormGradArgs masked = args;
  masked.y_backprop = BuildMasked(args);
  std::vector<xla::XlaOp> outputs = BuildHlo(masked);
  outputs.push_back(masked.y_backprop);
  return outputs;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_FIRST_ORDER_EX_H_
