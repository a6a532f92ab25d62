// The backward rule: the gradient of an activation -> the gradient of norm
// becomes FusedBatchNormGradEx, also across the gradient of an addition of
// equal shapes.

#include <set>
#include <string>
#include <vector>

#include "cc/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {

using ::tensorflow::NodeDef;

void Fuser::TryBackward(NodeDef* mask) {
  BypassUnbroadcasts(*mask);
  std::vector<Fusion> refused;
  for (NodeDef* const gradient : GradientsBehind(*mask)) {
    const Backward backward = {mask, gradient};
    const Fusion fusion = {gradient->name(), /*is_backward=*/true,
                           BackwardRefusal(backward)};
    if (fusion.refusal.empty()) {
      FuseBackward(backward);
      fusions_.push_back(fusion);
      return;  // Another gradient, if there is one, reads side_input_backprop.
    }
    refused.push_back(fusion);
  }
  fusions_.insert(fusions_.end(), refused.begin(), refused.end());
}

// First the one whose forward op the activation was fused with, if any.
std::vector<NodeDef*> Fuser::GradientsBehind(const NodeDef& mask) {
  std::vector<NodeDef*> result;
  NodeDef* const forward = graph_.Producer(mask, kFeatures);
  for (const IndexedGraph::Consumer& consumer : graph_.Consumers(mask.name())) {
    if (!IsGradient(*consumer.node) || consumer.port != 0 ||
        consumer.input != kGradYBackprop) {
      continue;
    }
    const bool matches = forward != nullptr && IsFusedNorm(*forward) &&
                         SameTensor(*forward, kX, *consumer.node, kGradX);
    result.insert(matches ? result.begin() : result.end(), consumer.node);
  }
  return result;
}

std::string Fuser::BackwardRefusal(const Backward& backward) {
  const NodeDef& mask = *backward.mask;
  const NodeDef& gradient = *backward.gradient;
  const std::string refusal = NodeRefusal(gradient);
  if (!refusal.empty()) return refusal;
  if (options_.preserved.count(mask.name()) != 0) {
    return mask.name() + " is kept by name";
  }
  if (mask.device() != gradient.device()) {
    return mask.name() + " and " + gradient.name() +
           " are on different devices";
  }
  for (const IndexedGraph::Consumer& consumer : graph_.Consumers(mask.name())) {
    if (consumer.port == TensorName::kControl) {
      return consumer.node->name() + " has a control edge from " + mask.name();
    }
  }
  std::vector<std::string> others(gradient.input().begin() + 1,
                                  gradient.input().end());
  if (graph_.DependsOn(others, mask.name())) {
    return "its other inputs depend on " + mask.name();
  }
  return "";
}

// The FusedBatchNormEx that computed features, if its coefficients decide as
// features does; else nullptr.
const NodeDef* Fuser::ForwardOf(const Backward& backward) {
  const NodeDef* const forward = graph_.Producer(*backward.mask, kFeatures);
  const bool matches =
      forward != nullptr && forward->op() == kFusedForward &&
      TensorName::Parse(backward.mask->input(kFeatures)).port == 0 &&
      SideInputsOf(*forward) == 0 &&
      ActivationOf(*forward) == ActivationOfGradient(*backward.mask) &&
      SameTensor(*forward, kX, *backward.gradient, kGradX);
  return matches ? forward : nullptr;
}

// reserve_space_3 of the fused op: the coefficients of the forward op; or a
// tensor of another size than coefficients, so that the mask is from y. Not
// what the gradient has there: a later run that fuses that forward op makes it
// coefficients, of another offset. But the placeholder of a frozen norm of this
// graph stays (MaskFromY finds it then), because TensorFlow's remapper takes a
// frozen norm apart that nothing but its y is read of, fetched or not.
std::string Fuser::CoefficientsFor(const Backward& backward) {
  if (const NodeDef* const forward = ForwardOf(backward)) {
    return TensorName{forward->name(), kForwardCoefficients}.ToInput();
  }
  const NodeDef& gradient = *backward.gradient;
  const NodeDef* const norm = graph_.Producer(gradient, kGradReserveSpace3);
  const bool keeps_norm =
      norm != nullptr && IsPlainNorm(*norm) && !IsTraining(*norm) &&
      TensorName::Parse(gradient.input(kGradReserveSpace3)).port ==
          kForwardCoefficients;
  return gradient.input(keeps_norm ? kGradReserveSpace3 : kGradReserveSpace2);
}

void Fuser::FuseBackward(const Backward& backward) {
  NodeDef* const mask = backward.mask;
  NodeDef* const fused = backward.gradient;
  const std::vector<std::string> controls = ControlInputs({mask, fused});
  std::vector<std::string> inputs = DataInputs(*fused);
  inputs.resize(kGradInputs);
  inputs[kGradYBackprop] = mask->input(0);
  const NodeDef* const forward = ForwardOf(backward);
  inputs.push_back(CoefficientsFor(backward));
  inputs.push_back(forward != nullptr ? forward->input(kOffset)
                                      : inputs[kGradScale]);  // not read
  inputs.push_back(mask->input(kFeatures));
  inputs.insert(inputs.end(), controls.begin(), controls.end());

  NodeDef node;
  CopyAttrs(*fused, {"T", "U", "epsilon", "data_format", "is_training"}, &node);
  CopyAttrs(*mask, {}, &node);
  (*node.mutable_attr())["U"].set_type(tensorflow::DT_FLOAT);
  (*node.mutable_attr())["activation_mode"].set_s(ActivationOfGradient(*mask));
  graph_.SetInputs(fused, inputs);
  fused->set_op(kFusedBackward);
  const bool has_other_consumers = !graph_.Consumers(mask->name()).empty();
  (*node.mutable_attr())["num_side_inputs"].set_i(has_other_consumers);
  fused->mutable_attr()->swap(*node.mutable_attr());
  MoveConsumers(mask->name(), fused->name(),
                {{0, TensorName{fused->name(), kSideInputBackprop}}});
  Replace(mask, fused->name());
}

// ---- Gradients of additions ----------------------------------------------

// The gradient of an addition whose inputs have shapes that were not known in
// full when it was built is Reshape(Sum(gradient, axes), shape): the sum over
// the axes along which an input was broadcast. Where the shapes are equal after
// all, and that of the gradient too, it is the identity. Bypasses it between
// `mask` and the consumers if one of them is the gradient of a norm.
void Fuser::BypassUnbroadcasts(const NodeDef& mask) {
  std::vector<NodeDef*> unbroadcasts;
  bool leads_to_norm = false;
  for (const IndexedGraph::Consumer& sum : graph_.Consumers(mask.name())) {
    if (sum.node->op() != "Sum" || sum.input != 0) continue;
    for (const IndexedGraph::Consumer& end :
         graph_.Consumers(sum.node->name())) {
      const bool reshapes = end.input == 0 && end.port == 0;
      if (!reshapes || !IsIdentityUnbroadcast(mask, *end.node)) continue;
      unbroadcasts.push_back(end.node);
      for (const IndexedGraph::Consumer& each :
           graph_.Consumers(end.node->name())) {
        leads_to_norm |= IsGradient(*each.node);
      }
    }
  }
  if (!leads_to_norm) return;
  for (NodeDef* const unbroadcast : unbroadcasts) {
    MoveConsumers(unbroadcast->name(), unbroadcast->name(),
                  {{0, TensorName{mask.name(), 0}}});
    RemoveDeadNodes(unbroadcast);
  }
}

bool Fuser::IsIdentityUnbroadcast(const NodeDef& mask, const NodeDef& reshape) {
  if (reshape.op() != "Reshape") return false;
  const NodeDef* const sum = graph_.Producer(reshape, 0);
  const NodeDef* const shape = graph_.Producer(reshape, 1);
  if (sum == nullptr || sum->op() != "Sum" || shape == nullptr) return false;
  const NodeDef* const axes = graph_.Producer(*sum, 1);
  if (axes == nullptr || axes->op() != "BroadcastGradientArgs") return false;
  const NodeDef* const shapes[] = {shape, graph_.Producer(*axes, 0),
                                   graph_.Producer(*axes, 1)};
  for (const NodeDef* const each : shapes) {
    if (each == nullptr || each->op() != "Shape") return false;
  }
  // What one of them waits for would run no more.
  if (!ControlInputs({&reshape, sum, axes, shapes[0], shapes[1], shapes[2]})
           .empty()) {
    return false;
  }
  const auto same = [this](const NodeDef& a, const NodeDef& b,
                           int input_b = 0) {
    return SameTensor(a, 0, b, input_b) ||
           options_.same_shape(TensorName::Parse(a.input(0)),
                               TensorName::Parse(b.input(input_b)));
  };
  return same(*shapes[0], *shapes[1]) && same(*shapes[1], *shapes[2]) &&
         same(*shapes[0], mask, kFeatures);
}

// Removes the nodes of an unbroadcast that are dead: without consumers.
void Fuser::RemoveDeadNodes(NodeDef* node) {
  static const std::set<std::string>* const kOps = new std::set<std::string>{
      "Reshape", "Sum", "BroadcastGradientArgs", "Shape"};
  if (node == nullptr || graph_.IsRemoved(*node) ||
      kOps->count(node->op()) == 0 ||
      options_.preserved.count(node->name()) != 0 ||
      !graph_.Consumers(node->name()).empty()) {
    return;
  }
  const std::vector<std::string> inputs = DataInputs(*node);
  Replace(node, "");
  for (const std::string& input : inputs) {
    RemoveDeadNodes(graph_.Find(TensorName::Parse(input).node));
  }
}

}  // namespace tf_bn_ops
