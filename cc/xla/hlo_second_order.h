// The second-order gradient in XLA's own operations, for any device: the graph
// of cc/core/formulas/second_order_graph.h. Sums are of centered values in
// float64, elements in the type that they are computed in.

#ifndef TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_
#define TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_

#include "cc/core/formulas/second_order_graph.h"
#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// What BuildSecondOrderGraph asks for.
class XlaGraph {
 public:
  explicit XlaGraph(const XlaCall& of) : of_(of), channels_(of) {}

  GraphTensor<xla::XlaOp> Tensor(Role role) const {
    return {channels_.Wide(role), channels_.Narrow(of_[role])};
  }
  GraphTensor<xla::XlaOp> Centered(Role role) const {
    const xla::XlaOp mean = channels_.Mean(of_[role]);
    return {channels_.Wide(role) - channels_.Broadcast(mean),
            channels_.Minus(of_[role], mean)};
  }
  xla::XlaOp Vector(Role role) const { return channels_.Wide(role); }
  xla::XlaOp Sum(xla::XlaOp v) const { return channels_.Sum(v); }
  xla::XlaOp Mean(xla::XlaOp v) const { return channels_.Mean(v); }
  xla::XlaOp Spread(xla::XlaOp v) const { return channels_.Spread(v); }
  xla::XlaOp Rstd(xla::XlaOp v) const { return channels_.Rstd(v); }
  xla::XlaOp Count() const { return channels_.Count(Vector(Role::kScale)); }
  xla::XlaOp Constant(double value) const {
    return xla::ScalarLike(Vector(Role::kScale), value);
  }

 private:
  const XlaCall& of_;
  const XlaChannels channels_;
};

inline void BuildSecondOrder(XlaCall* call) {
  XlaCall& out = *call;
  const XlaChannels channels(*call);
  const SecondOrderResults<xla::XlaOp> results =
      BuildSecondOrderGraph<xla::XlaOp>(XlaGraph(*call),
                                        call->call.is_training);
  out[Role::kYBackpropGrad] = channels.Elements(results.y_backprop_grad);
  out[Role::kXGrad] = channels.Elements(results.x_grad);
  out[Role::kScaleGrad] = channels.VectorOfSum(results.scale_grad);
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_SECOND_ORDER_H_
