// The backward rule: the gradient of an activation -> the gradient of norm
// becomes FusedBatchNormGradEx, also across the gradient of an addition of
// equal shapes.

#include <string>
#include <vector>

#include "cc/tf/optimizer/fuser.h"
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
                          : RemovalRefusal({chain.first()}, *chain.last(),
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

void Fuser::FuseBackward(const Chain& chain) {
  NodeDef* const mask = chain.first();
  NodeDef* const fused = chain.last();
  // What a norm has there, or a vector, which holds no coefficients. Frozen
  // whatever is there, such as what a loop or a function keeps of a norm: the
  // op does not look into it, and TensorFlow's remapper takes a frozen norm
  // apart once nothing but y is read, although its statistics may be fetched,
  // and with constants outside of the loop that the norm is in.
  const bool has_third = HasDataInputs(*fused, kGradReserveSpace3 + 1);
  const NodeDef* const norm =
      has_third ? graph_.Producer(*fused, kGradReserveSpace3) : nullptr;
  const bool keeps_third =
      has_third && (!IsTraining(*fused) ||
                    (norm != nullptr && (IsNorm(*norm) || IsFusedNorm(*norm))));
  std::string reserve_space_3 =
      fused->input(keeps_third ? kGradReserveSpace3 : kGradReserveSpace2);
  std::string offset = reserve_space_3;
  // The mask is from x by the coefficients of the forward op that computed the
  // features, and its offset. Otherwise from y, since offset is reserve_space_3
  // again, or that holds no coefficients.
  if (const NodeDef* const forward = ForwardOf(chain)) {
    reserve_space_3 =
        TensorName{forward->name(), kForwardCoefficients}.ToInput();
    offset = forward->input(kOffset);
  }
  MakeGradEx(fused,
             {mask->input(0), reserve_space_3, offset, mask->input(kFeatures)},
             ActivationOfGradient(*mask),
             /*has_side_input=*/graph_.NumConsumers(mask->name()) > 1,
             ControlInputs(chain.nodes));
  CopyAttrs(*mask, {}, fused);
  MoveConsumers(mask->name(), fused->name(),
                {{0, TensorName{fused->name(), kSideInputBackprop}}});
  Replace(mask, fused->name());
}

// Makes the gradient of a norm a FusedBatchNormGradEx of y_backprop,
// reserve_space_3, offset and y.
void Fuser::MakeGradEx(NodeDef* gradient, const std::vector<std::string>& of,
                       const std::string& activation, bool has_side_input,
                       const std::vector<std::string>& controls) {
  std::vector<std::string> inputs = DataInputs(*gradient);
  inputs.resize(kGradInputs);
  inputs[kGradYBackprop] = of[0];
  inputs.insert(inputs.end(), of.begin() + 1, of.end());
  inputs.insert(inputs.end(), controls.begin(), controls.end());
  NodeDef node;
  CopyAttrs(*gradient, {"T", "U", "epsilon", "data_format", "is_training"},
            &node);
  (*node.mutable_attr())["U"].set_type(tensorflow::DT_FLOAT);
  (*node.mutable_attr())["activation_mode"].set_s(activation);
  (*node.mutable_attr())["num_side_inputs"].set_i(has_side_input);
  graph_.SetInputs(gradient, inputs);
  gradient->set_op(kFusedBackward);
  gradient->mutable_attr()->swap(*node.mutable_attr());
}

}  // namespace tf_bn_ops
