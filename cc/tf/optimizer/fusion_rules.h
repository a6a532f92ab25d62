// Which nodes become one FusedBatchNormEx or FusedBatchNormGradEx, and when
// they must not. The only place of these rules: the graph optimizer and
// tf_bn_ops.rewrite.fuse both run them.
//
// Forward:   norm -> [Add | AddV2] -> Relu | Relu6     =>  FusedBatchNormEx
// Backward:  ReluGrad | Relu6Grad -> gradient of norm  =>  FusedBatchNormGradEx
// and the same with what elementwise ops compute if it is SiLU, hard-SiLU or
// leaky ReLU of y, and its derivative (smooth_rule.cc).
//
// norm is FusedBatchNorm, V2, V3 of TensorFlow or of this library, or a
// FusedBatchNormEx without activation and side input; TensorFlow's
// _FusedBatchNormEx, which its remapper emits, is taken with an activation too.
//
// The two are independent of each other. ReluGrad reads the activation's
// result, which the fused node computes as well, so nothing of the gradient
// reads what disappears in the forward pass; and FusedBatchNormGradEx masks by
// y, which is what ReluGrad calls features, whoever computed it. Where a
// FusedBatchNormEx without side input computed it, the gradient is given the
// coefficients too, and masks without reading y.
//
// The fused node has the name of the last one of its chain, whose first output
// it has. The gradient that ReluGrad computed, if others than the gradient of
// norm read it, is side_input_backprop.

#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "cc/tf/optimizer/indexed_graph.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tf_bn_ops {

// Whether two tensors have the same shape, whatever the graph is fed.
using SameShape = std::function<bool(const TensorName&, const TensorName&)>;

// In `item.graph`, by shapes that are inferred at the first question: symbolic
// dimensions that are the same symbol are equal. `item` must outlive it.
SameShape SameShapeIn(const tensorflow::grappler::GrapplerItem& item);

struct FusionOptions {
  // Names of nodes that somebody outside of the graph refers to.
  std::unordered_set<std::string> preserved;
  // Whether nodes without a device will run on a CPU.
  bool unplaced_is_cpu = true;
  // Whether frozen normalization of a convolution is left to TensorFlow, whose
  // remapper fuses it into the convolution: less memory traffic than any op
  // behind it. An optimizer that runs after the remapper takes what is left.
  bool leaves_convolutions = true;
  // Whether nodes that nothing reads are not computed: in bodies of functions.
  bool dangling_is_dead = false;
  // Of the graph as it was. Addition broadcasts, FusedBatchNormEx does not.
  SameShape same_shape;
};

// One place where the pattern was found.
struct Fusion {
  std::string node;  // norm, or its gradient
  bool is_backward = false;
  std::string refusal;        // why it stays as it is; empty if it was fused
  std::string partners = {};  // the nodes that it was fused with
};

// "node", "forward" or "backward", refusal and partners, with tabs between.
std::string AsLine(const Fusion& fusion);

// Whether an op is part of a pattern at all.
bool IsBatchNormOp(const std::string& op);

// Fuses what can be fused in one graph or function body.
std::vector<Fusion> FusePatterns(const FusionOptions& options,
                                 tensorflow::GraphDef* graph);

}  // namespace tf_bn_ops
