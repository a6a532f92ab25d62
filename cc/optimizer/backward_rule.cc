// The backward rule: the gradient of an activation -> the gradient of norm
// becomes FusedBatchNormGradEx, also across the gradient of an addition of
// equal shapes.

#include <string>
#include <vector>

#include "cc/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {

using ::tensorflow::NodeDef;

// Of the gradients that read the mask, first the one whose forward op the
// activation was fused with, if any. The others, if there are any, read
// side_input_backprop then.
std::vector<Chain> Fuser::ChainsBehind(NodeDef* mask) {
  std::vector<Chain> result;
  const NodeDef* const forward = graph_.Producer(*mask, kFeatures);
  for (const IndexedGraph::Consumer& consumer :
       graph_.Consumers(mask->name())) {
    if (!IsGradient(*consumer.node) || consumer.port != 0 ||
        consumer.input != kGradYBackprop) {
      continue;
    }
    const bool matches = forward != nullptr && IsFusedNorm(*forward) &&
                         SameTensor(*forward, kX, *consumer.node, kGradX);
    result.insert(matches ? result.begin() : result.end(),
                  Chain{{mask, consumer.node}});
  }
  return result;
}

// Optimizers of TensorFlow 1 gate gradients: each waits until all gradients of
// an operation are there, the mask too, which is no more once it is fused.
void Fuser::RefuseGated(const NodeDef& mask) {
  for (const IndexedGraph::Consumer& gate : graph_.Consumers(mask.name())) {
    if (!IsGate(*gate.node) || gate.port != 0) continue;
    for (const IndexedGraph::Consumer& each :
         graph_.Consumers(gate.node->name())) {
      if (IsGradient(*each.node) && each.input == kGradYBackprop) {
        fusions_.push_back(
            {each.node->name(), /*is_backward=*/true,
             gate.node->name() + " is between " + mask.name() + " and it"});
      }
    }
  }
}

std::string Fuser::BackwardRefusal(const Chain& chain) {
  const std::string refusal = NodeRefusal(*chain.last());
  return !refusal.empty() ? refusal
                          : IntermediateRefusal(*chain.first(), *chain.last(),
                                                /*others_may_read=*/true);
}

// The FusedBatchNormEx that computed features, if its coefficients decide as
// features does; else nullptr. A session may feed what is kept by name.
const NodeDef* Fuser::ForwardOf(const Chain& chain) {
  const NodeDef* const forward = graph_.Producer(*chain.first(), kFeatures);
  const bool matches =
      forward != nullptr && forward->op() == kFusedForward &&
      options_.preserved.count(forward->name()) == 0 &&
      TensorName::Parse(chain.first()->input(kFeatures)).port == 0 &&
      SideInputsOf(*forward) == 0 &&
      ActivationOf(*forward) == ActivationOfGradient(*chain.first()) &&
      SameTensor(*forward, kX, *chain.last(), kGradX);
  return matches ? forward : nullptr;
}

// For a frozen norm of TensorFlow whose gradient reads its placeholder; the
// fused one will not. TensorFlow's remapper takes a frozen norm apart once
// nothing but y is read, although its statistics may be fetched, and with
// constants outside of the loop that the norm is in: both end in an error. It
// does not know this library's op, which is the same.
void Fuser::TakeFrozen(NodeDef* node) {
  if (node->op() == "FusedBatchNormV3" && IsPlainNorm(*node) &&
      !IsTraining(*node) && NodeRefusal(*node).empty() &&
      graph_.HasConsumer(node->name(), [](const IndexedGraph::Consumer& each) {
        return each.port == kForwardCoefficients;
      })) {
    node->set_op("TfBnOps>FusedBatchNormV3");
  }
}

void Fuser::FuseBackward(const Chain& chain) {
  NodeDef* const mask = chain.first();
  NodeDef* const fused = chain.last();
  const std::vector<std::string> controls = ControlInputs(chain.nodes);
  std::vector<std::string> inputs = DataInputs(*fused);
  // What a norm has there, or a vector, which holds no coefficients.
  const bool has_third = inputs.size() > kGradReserveSpace3;
  const NodeDef* const norm =
      has_third ? graph_.Producer(*fused, kGradReserveSpace3) : nullptr;
  const bool is_norms =
      norm != nullptr && (IsNorm(*norm) || IsFusedNorm(*norm));
  const std::string reserve_space_3 =
      inputs[is_norms ? kGradReserveSpace3 : kGradReserveSpace2];
  inputs.resize(kGradInputs);
  inputs[kGradYBackprop] = mask->input(0);
  const NodeDef* const forward = ForwardOf(chain);
  // The mask is from x by the coefficients of the forward op that computed the
  // features, and its offset. Otherwise from y, since offset is reserve_space_3
  // again, or that holds no coefficients.
  inputs.push_back(
      forward != nullptr
          ? TensorName{forward->name(), kForwardCoefficients}.ToInput()
          : reserve_space_3);
  inputs.push_back(forward != nullptr ? forward->input(kOffset)
                                      : reserve_space_3);
  inputs.push_back(mask->input(kFeatures));
  inputs.insert(inputs.end(), controls.begin(), controls.end());

  NodeDef node;
  CopyAttrs(*fused, {"T", "U", "epsilon", "data_format", "is_training"}, &node);
  CopyAttrs(*mask, {}, &node);
  (*node.mutable_attr())["U"].set_type(tensorflow::DT_FLOAT);
  (*node.mutable_attr())["activation_mode"].set_s(ActivationOfGradient(*mask));
  graph_.SetInputs(fused, inputs);
  fused->set_op(kFusedBackward);
  const bool has_other_consumers = graph_.NumConsumers(mask->name()) != 0;
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
// all, and the gradient's too, it is the identity. Bypasses it between
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
  const auto producer = [this](const NodeDef* node, int input, const char* op) {
    NodeDef* const found =
        node == nullptr ? nullptr : graph_.Producer(*node, input);
    return found != nullptr && found->op() == op && HasDataInputs(*found, 1)
               ? found
               : nullptr;
  };
  NodeDef* const sum = producer(&reshape, 0, "Sum");
  NodeDef* const axes = producer(sum, 1, "BroadcastGradientArgs");
  NodeDef* const shapes[] = {producer(&reshape, 1, "Shape"),
                             producer(axes, 0, "Shape"),
                             producer(axes, 1, "Shape")};
  for (const NodeDef* const each : shapes) {
    if (reshape.op() != "Reshape" || each == nullptr) return false;
  }
  // What one of them waits for would run no more.
  if (!ControlInputs({graph_.Find(reshape.name()), sum, axes, shapes[0],
                      shapes[1], shapes[2]})
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
void Fuser::RemoveDeadNodes(NodeDef* unbroadcast) {
  std::vector<std::string> names = {unbroadcast->name()};
  while (!names.empty()) {
    NodeDef* const node = graph_.Find(names.back());
    names.pop_back();
    if (node == nullptr ||
        !IsOneOf(node->op(),
                 {"Reshape", "Sum", "BroadcastGradientArgs", "Shape"}) ||
        options_.preserved.count(node->name()) != 0 ||
        graph_.NumConsumers(node->name()) != 0) {
      continue;
    }
    for (const std::string& input : DataInputs(*node)) {
      names.push_back(TensorName::Parse(input).node);
    }
    Replace(node, "");
  }
}

}  // namespace tf_bn_ops
