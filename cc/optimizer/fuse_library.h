// FusePatterns on whole messages: a GraphDef with the functions of its library,
// with shapes as grappler infers them.

#ifndef TF_BN_OPS_CC_OPTIMIZER_FUSE_LIBRARY_H_
#define TF_BN_OPS_CC_OPTIMIZER_FUSE_LIBRARY_H_

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "cc/optimizer/fusion_rules.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tf_bn_ops {

// Compares shapes of `item.graph`, inferred at the first question: symbolic
// dimensions that are the same symbol are equal. `item` must outlive it.
std::function<bool(const TensorName&, const TensorName&)> SameShapeIn(
    const tensorflow::grappler::GrapplerItem& item);

// Where the pattern was found, in which function ("": the graph itself).
struct LibraryFusion {
  std::string function;
  Fusion fusion;
};

// Fuses in the graph and in the functions of its library but for those that XLA
// compiles; nodes that are named in `preserved` stay. Functions in which
// nothing was fused are left as they are.
absl::Status FuseGraphAndLibrary(
    const std::unordered_set<std::string>& preserved,
    tensorflow::GraphDef* graph, std::vector<LibraryFusion>* fusions);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPTIMIZER_FUSE_LIBRARY_H_
