// The forward rule: norm -> [addition] -> activation becomes FusedBatchNormEx,
// and so does TensorFlow's _FusedBatchNormEx.

#include <string>
#include <vector>

#include "cc/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {

using ::tensorflow::NodeDef;

// The chains that end in the activation: two if two norms are added, one if a
// norm is added to itself.
std::vector<Forward> Fuser::ForwardsBefore(NodeDef* activation) {
  NodeDef* const before = graph_.Producer(*activation, 0);
  if (before == nullptr || TensorName::Parse(activation->input(0)).port != 0) {
    return {};
  }
  if (IsNorm(*before)) return {{before, nullptr, 0, activation}};
  std::vector<Forward> result;
  if (!IsAddition(*before)) return result;
  const int inputs = before->input(0) == before->input(1) ? 1 : 2;
  for (int input = 0; input < inputs; ++input) {
    NodeDef* const norm = graph_.Producer(*before, input);
    if (norm != nullptr && IsNorm(*norm) &&
        TensorName::Parse(before->input(input)).port == 0) {
      result.push_back({norm, before, 1 - input, activation});
    }
  }
  return result;
}

void Fuser::TryForward(NodeDef* activation) {
  std::vector<Fusion> refused;
  for (const Forward& forward : ForwardsBefore(activation)) {
    const Fusion fusion = {forward.norm->name(), /*is_backward=*/false,
                           ForwardRefusal(forward)};
    if (fusion.refusal.empty()) {
      FuseForward(forward);
      fusions_.push_back(fusion);
      return;  // The other norm, if there is one, is its side input.
    }
    refused.push_back(fusion);
  }
  fusions_.insert(fusions_.end(), refused.begin(), refused.end());
}

std::string Fuser::ForwardRefusal(const Forward& forward) {
  const NodeDef& behind = *forward.BehindNorm();
  for (const std::string& refusal :
       {NodeRefusal(*forward.norm), IntermediateRefusal(*forward.norm, behind),
        AdditionRefusal(forward)}) {
    if (!refusal.empty()) return refusal;
  }
  if (LeftToConvolution(forward)) {
    return "TensorFlow fuses it into the convolution before it";
  }
  std::vector<std::string> inputs =
      ControlInputs({&behind, forward.activation});
  if (forward.add != nullptr) {
    inputs.push_back(forward.add->input(forward.side_input));
  }
  if (graph_.DependsOn(inputs, forward.norm->name())) {
    return "what is added or waited for depends on its other outputs";
  }
  return "";
}

std::string Fuser::AdditionRefusal(const Forward& forward) {
  if (forward.add == nullptr) return "";
  const std::string refusal =
      IntermediateRefusal(*forward.add, *forward.activation);
  if (!refusal.empty()) return refusal;
  if (!options_.same_shape(
          TensorName::Parse(forward.norm->input(kX)),
          TensorName::Parse(forward.add->input(forward.side_input)))) {
    return "the two inputs of " + forward.add->name() +
           " are not known to have the same shape";
  }
  return "";
}

bool Fuser::LeftToConvolution(const Forward& forward) {
  if (!options_.leaves_convolutions || forward.add != nullptr ||
      IsTraining(*forward.norm)) {
    return false;
  }
  const NodeDef* const x = graph_.Producer(*forward.norm, kX);
  return x != nullptr && x->op() == "Conv2D" &&
         graph_.Consumers(x->name()).size() == 1;
}

// For a norm that is about to become a FusedBatchNormEx. Gradients that were
// fused before it read a placeholder of `norm` in place of coefficients, and
// mask from y. It becomes coefficients now, but what they have as offset need
// not be that of `norm`.
void Fuser::MaskFromY(const NodeDef& norm) {
  for (const IndexedGraph::Consumer& consumer : graph_.Consumers(norm.name())) {
    if (consumer.node->op() == kFusedBackward &&
        consumer.port == kForwardCoefficients &&
        consumer.input == kGradReserveSpace3) {
      graph_.SetInput(
          consumer.node, kGradReserveSpace3,
          TensorName::Parse(consumer.node->input(kGradReserveSpace2)));
    }
  }
}

void Fuser::FuseForward(const Forward& forward) {
  NodeDef* const fused = forward.activation;
  const NodeDef& norm = *forward.norm;
  const TensorName x = TensorName::Parse(norm.input(kX));
  std::vector<std::string> inputs = DataInputs(norm);
  std::vector<const NodeDef*> chain = {&norm, fused};
  if (forward.add != nullptr) {
    inputs.push_back(forward.add->input(forward.side_input));
    chain.push_back(forward.add);
  }
  for (const std::string& control : ControlInputs(chain)) {
    inputs.push_back(control);
  }

  NodeDef node;
  node.set_name(fused->name());
  node.set_op(kFusedForward);
  node.set_device(norm.device());
  CopyAttrs(norm,
            {"T", "U", "epsilon", "exponential_avg_factor", "data_format",
             "is_training", "bessel_correction"},
            &node);
  CopyAttrs(*fused, {}, &node);
  (*node.mutable_attr())["U"].set_type(tensorflow::DT_FLOAT);
  (*node.mutable_attr())["num_side_inputs"].set_i(forward.add != nullptr);
  (*node.mutable_attr())["activation_mode"].set_s(fused->op());

  MaskFromY(norm);
  // The only other consumers of y and of the sum read its shape, that of x.
  MoveConsumers(norm.name(), fused->name(), {{0, x}});
  if (forward.add != nullptr) {
    MoveConsumers(forward.add->name(), fused->name(), {{0, x}});
  }
  graph_.SetInputs(fused, inputs);
  fused->set_op(node.op());
  fused->set_device(node.device());
  fused->mutable_attr()->swap(*node.mutable_attr());
  if (forward.add != nullptr) Replace(forward.add, fused->name());
  Replace(forward.norm, fused->name());
}

// What TensorFlow's remapper has fused already: the attrs are the same.
void Fuser::TakeRemapped(NodeDef* node) {
  const std::string activation = ActivationOf(*node);
  if (activation != "Relu" && activation != "Relu6") return;
  const std::string refusal = NodeRefusal(*node);
  fusions_.push_back({node->name(), /*is_backward=*/false, refusal});
  if (!refusal.empty()) return;
  MaskFromY(*node);
  node->set_op(kFusedForward);
}

}  // namespace tf_bn_ops
