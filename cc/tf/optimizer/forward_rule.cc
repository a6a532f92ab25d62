// The forward rule: norm -> [addition] -> activation becomes FusedBatchNormEx,
// and so does TensorFlow's _FusedBatchNormEx.

#include <string>
#include <vector>

#include "cc/tf/ops/op_signature.h"
#include "cc/tf/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {

using ::tensorflow::NodeDef;

// The chains that end in the activation: two if two norms are added, one if a
// norm is added to itself. Norms behind a gate are reported as refused.
std::vector<Chain> Fuser::ChainsBefore(NodeDef* activation) {
  const auto is_norm = [this](const NodeDef& node, int input) {
    const NodeDef* const norm = graph_.Producer(node, input);
    return norm != nullptr && IsNorm(*norm) &&
           TensorName::Parse(node.input(input)).port == 0;
  };
  const auto norm_before = [&](const NodeDef& node, int input) -> NodeDef* {
    NodeDef* const producer = graph_.Producer(node, input);
    if (is_norm(node, input)) return producer;
    if (producer != nullptr && IsGate(*producer) && is_norm(*producer, 0)) {
      fusions_.push_back(
          {graph_.Producer(*producer, 0)->name(),
           /*is_backward=*/false,
           producer->name() + " is between it and " + node.name()});
    }
    return nullptr;
  };
  if (NodeDef* const norm = norm_before(*activation, 0)) {
    return {{{norm, activation}}};
  }
  std::vector<Chain> result;
  NodeDef* const addition = graph_.Producer(*activation, 0);
  if (addition == nullptr || !IsAddition(*addition)) return result;
  const int inputs = SameTensor(*addition, 0, *addition, 1) ? 1 : 2;
  for (int input = 0; input < inputs; ++input) {
    if (NodeDef* const norm = norm_before(*addition, input)) {
      result.push_back({{norm, addition, activation}, 1 - input});
    }
  }
  return result;
}

std::string Fuser::ForwardRefusal(const Chain& chain) {
  std::string refusal = NodeRefusal(*chain.first());
  if (!refusal.empty()) return refusal;
  const std::vector<NodeDef*> removed = chain.removed();
  refusal = RemovalRefusal(removed, *chain.last(), /*others_may_read=*/false,
                           chain.identities);
  for (const NodeDef* const identity : chain.identities) {
    if (refusal.empty()) refusal = BypassRefusal(*identity, removed);
  }
  if (!refusal.empty()) return refusal;
  if (!chain.smooth.empty()) {  // Whose inner nodes must not wait.
    std::vector<NodeDef*> behind = chain.inner;
    behind.push_back(chain.last());
    behind.insert(behind.end(), chain.identities.begin(),
                  chain.identities.end());
    for (const std::string& control : ControlInputs(behind)) {
      return "what " + control.substr(1) +
             " computes is waited for, and may depend on its other outputs";
    }
  }
  return ShapeRefusal(chain);
}

// What the graph says of the shapes, and of what is before the norm.
std::string Fuser::ShapeRefusal(const Chain& chain) {
  const NodeDef* const addition = chain.addition();
  if (addition != nullptr &&
      !options_.same_shape(
          TensorName::Parse(chain.first()->input(kX)),
          TensorName::Parse(addition->input(chain.side_input)))) {
    return "the two inputs of " + addition->name() +
           " are not known to have the same shape";
  }
  return LeftToConvolution(chain)
             ? "TensorFlow fuses it into the convolution before it"
             : "";
}

bool Fuser::LeftToConvolution(const Chain& chain) {
  if (!options_.leaves_convolutions || chain.addition() != nullptr ||
      IsTraining(*chain.first())) {
    return false;
  }
  const NodeDef* const x = graph_.Producer(*chain.first(), kX);
  // With another data format the remapper fuses it as well, and wrongly.
  return x != nullptr && x->op() == "Conv2D" &&
         DataFormatOf(*x) == DataFormatOf(*chain.first()) &&
         graph_.NumConsumers(x->name()) == 1;
}

// For a norm that is about to become a FusedBatchNormEx. Gradients behind an
// activation that read a placeholder of `norm` mask from y, and still have to
// where it becomes coefficients: `norm` may have another offset.
void Fuser::MaskFromY(const NodeDef& norm) {
  for (const IndexedGraph::Consumer& consumer : graph_.Consumers(norm.name())) {
    // A derivative follows from x by the offset of this norm (smooth_rule.cc).
    if (consumer.node->op() == kFusedBackward &&
        !IsSmooth(ActivationNamed(ActivationOf(*consumer.node))) &&
        consumer.port == kForwardCoefficients &&
        consumer.input == kGradReserveSpace3) {
      graph_.SetInput(consumer.node, kGradOffset,
                      TensorName{norm.name(), kForwardCoefficients});
    }
  }
}

void Fuser::FuseForward(const Chain& chain) {
  NodeDef* const fused = chain.last();
  const NodeDef& norm = *chain.first();
  for (NodeDef* const identity : chain.identities) Bypass(identity);
  MaskFromY(norm);
  std::vector<std::string> inputs = DataInputs(norm);
  inputs.resize(kForwardInputs);
  if (const NodeDef* const addition = chain.addition()) {
    inputs.push_back(addition->input(chain.side_input));
  }
  for (const std::string& control : ControlInputs(chain.nodes)) {
    inputs.push_back(control);
  }

  NodeDef node;
  CopyAttrs(norm,
            {"T", "U", "epsilon", "exponential_avg_factor", "data_format",
             "is_training", "bessel_correction"},
            &node);
  CopyAttrs(*fused, {}, &node);
  (*node.mutable_attr())["U"].set_type(tensorflow::DT_FLOAT);
  (*node.mutable_attr())["num_side_inputs"].set_i(chain.addition() != nullptr);
  (*node.mutable_attr())["activation_mode"].set_s(
      chain.smooth.empty() ? fused->op() : chain.smooth);
  if (chain.alpha != 0) {
    (*node.mutable_attr())["leakyrelu_alpha"].set_f(chain.alpha);
  }

  // The only other consumers of what goes read its shape, which x has.
  const TensorName x = TensorName::Parse(norm.input(kX));
  const std::vector<NodeDef*> removed = chain.removed();
  graph_.SetInputs(fused, inputs);
  fused->set_op(kFusedForward);
  fused->mutable_attr()->swap(*node.mutable_attr());
  for (NodeDef* const each : removed) {
    MoveConsumers(each->name(), fused->name(), {{0, x}});
  }
  for (NodeDef* const each : removed) Replace(each, fused->name());
}

// What TensorFlow's remapper has fused already: the attrs are the same.
void Fuser::TakeRemapped(NodeDef* node) {
  if (node->op() != kRemapped || !HasDataInputs(*node, kForwardInputs)) return;
  const std::string activation = ActivationOf(*node);
  if (activation != "Relu" && activation != "Relu6") return;
  const std::string refusal = NodeRefusal(*node);
  fusions_.push_back({node->name(), /*is_backward=*/false, refusal});
  if (!refusal.empty()) return;
  MaskFromY(*node);
  node->set_op(kFusedForward);
}

}  // namespace tf_bn_ops
