// The op classes of tf_bn_ops/split_ops.h.

#include "tf_bn_ops/split_ops.h"

#include "cc/client/add_node.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_bn_ops {
namespace ops {
namespace {

namespace tf = ::tensorflow;

// Sets a list of inputs and the attributes that all classes with one have.
template <typename Attrs>
auto SetListAndAttrs(const tf::Scope& scope, const tf::InputList& list,
                     const Attrs& attrs) {
  return [&](tf::NodeBuilder& builder) {
    builder.Input(tf::ops::AsNodeOutList(scope, list))
        .Attr("epsilon", attrs.epsilon_)
        .Attr("activation_mode", attrs.activation_mode_)
        .Attr("axis", attrs.axis_);
  };
}

}  // namespace

BatchNormStats::BatchNormStats(const tf::Scope& scope, tf::Input x)
    : BatchNormStats(scope, x, Attrs()) {}

BatchNormStats::BatchNormStats(const tf::Scope& scope, tf::Input x,
                               const Attrs& attrs) {
  using Op = BatchNormStats;
  SetMembers<Op>(AddNode(scope, "BatchNormStats", {x},
                         [&](tf::NodeBuilder& builder) {
                           builder.Attr("axis", attrs.axis_);
                         }),
                 {&Op::count, &Op::mean, &Op::m2}, this);
}

BatchNormGatherStats::BatchNormGatherStats(const tf::Scope& scope,
                                           tf::Input counts, tf::Input means,
                                           tf::Input m2s) {
  using Op = BatchNormGatherStats;
  SetMembers<Op>(AddNode(scope, "BatchNormGatherStats", {counts, means, m2s},
                         [](tf::NodeBuilder&) {}),
                 {&Op::count, &Op::mean, &Op::m2}, this);
}

BatchNormElemt::BatchNormElemt(const tf::Scope& scope, tf::Input x,
                               tf::Input scale, tf::Input offset,
                               tf::Input mean, tf::Input variance,
                               tf::InputList side_input)
    : BatchNormElemt(scope, x, scale, offset, mean, variance, side_input,
                     Attrs()) {}

BatchNormElemt::BatchNormElemt(const tf::Scope& scope, tf::Input x,
                               tf::Input scale, tf::Input offset,
                               tf::Input mean, tf::Input variance,
                               tf::InputList side_input, const Attrs& attrs) {
  using Op = BatchNormElemt;
  SetMembers<Op>(
      AddNode(scope, "BatchNormElemt", {x, scale, offset, mean, variance},
              SetListAndAttrs(scope, side_input, attrs)),
      {&Op::y}, this);
}

BatchNormBackwardReduce::BatchNormBackwardReduce(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input offset, tf::Input mean, tf::Input variance, tf::InputList y)
    : BatchNormBackwardReduce(scope, y_backprop, x, scale, offset, mean,
                              variance, y, Attrs()) {}

BatchNormBackwardReduce::BatchNormBackwardReduce(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input offset, tf::Input mean, tf::Input variance, tf::InputList y,
    const Attrs& attrs) {
  using Op = BatchNormBackwardReduce;
  SetMembers<Op>(
      AddNode(scope, "BatchNormBackwardReduce",
              {y_backprop, x, scale, offset, mean, variance},
              SetListAndAttrs(scope, y, attrs)),
      {&Op::sum_dy, &Op::sum_dy_xmu, &Op::scale_backprop, &Op::offset_backprop},
      this);
}

BatchNormBackwardElemt::BatchNormBackwardElemt(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input offset, tf::Input mean, tf::Input variance, tf::Input sum_dy,
    tf::Input sum_dy_xmu, tf::Input count, tf::InputList y)
    : BatchNormBackwardElemt(scope, y_backprop, x, scale, offset, mean,
                             variance, sum_dy, sum_dy_xmu, count, y, Attrs()) {}

BatchNormBackwardElemt::BatchNormBackwardElemt(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input offset, tf::Input mean, tf::Input variance, tf::Input sum_dy,
    tf::Input sum_dy_xmu, tf::Input count, tf::InputList y,
    const Attrs& attrs) {
  using Op = BatchNormBackwardElemt;
  tf::Node* const node = AddNode(
      scope, "BatchNormBackwardElemt",
      {y_backprop, x, scale, offset, mean, variance, sum_dy, sum_dy_xmu, count},
      [&](tf::NodeBuilder& builder) {
        SetListAndAttrs(scope, y, attrs)(builder);
        builder.Attr("num_side_inputs", attrs.num_side_inputs_);
      });
  SetMembers<Op>(node, {&Op::x_backprop}, this);
  for (int i = 1; node != nullptr && i < node->num_outputs(); ++i) {
    side_input_backprop.push_back(tf::Output(node, i));
  }
}

}  // namespace ops
}  // namespace tf_bn_ops
