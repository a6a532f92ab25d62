// The pass that fusion_rules.h describes, and what its parts share: which node
// is what, the state while a graph is rewritten, and why a chain must not be
// fused.
//
//   fusion_rules.cc    both directions
//   forward_rule.cc    norm -> [addition] -> activation
//   backward_rule.cc   gradient of an activation -> gradient of norm

#ifndef TF_BN_OPS_CC_OPTIMIZER_FUSER_H_
#define TF_BN_OPS_CC_OPTIMIZER_FUSER_H_

#include <map>
#include <string>
#include <vector>

#include "cc/optimizer/fusion_rules.h"
#include "cc/optimizer/indexed_graph.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_bn_ops {

constexpr char kFusedForward[] = "TfBnOps>FusedBatchNormEx";
constexpr char kFusedBackward[] = "TfBnOps>FusedBatchNormGradEx";
constexpr char kRemapped[] = "_FusedBatchNormEx";

// Inputs and outputs by the OpDefs.
constexpr int kX = 0;
constexpr int kScale = 1;
constexpr int kOffset = 2;
// Output of FusedBatchNormEx; in its place a norm has a placeholder.
constexpr int kForwardCoefficients = 5;
constexpr int kGradYBackprop = 0;
constexpr int kGradX = 1;
constexpr int kGradScale = 2;
constexpr int kGradReserveSpace2 = 4;
constexpr int kGradInputs = kGradReserveSpace2 + 1;  // up to it
constexpr int kGradReserveSpace3 = 5;                // of FusedBatchNormGradEx
constexpr int kSideInputBackprop = 5;
constexpr int kFeatures = 1;  // of ReluGrad

// Kinds of nodes, by op and attrs.
bool IsFusedNorm(const tensorflow::NodeDef& node);
bool IsGradient(const tensorflow::NodeDef& node);
bool IsPlainNorm(const tensorflow::NodeDef& node);
bool IsAddition(const tensorflow::NodeDef& node);
// A norm that an activation can be fused into.
bool IsNorm(const tensorflow::NodeDef& node);
// The activation whose gradient the node is; empty if it is none.
std::string ActivationOfGradient(const tensorflow::NodeDef& node);

// Attrs, by the OpDefs' defaults where they are missing.
bool IsTraining(const tensorflow::NodeDef& node);
std::string ActivationOf(const tensorflow::NodeDef& norm);
int SideInputsOf(const tensorflow::NodeDef& norm);

std::vector<std::string> DataInputs(const tensorflow::NodeDef& node);
std::vector<std::string> ControlInputs(
    const std::vector<const tensorflow::NodeDef*>& nodes);
bool SameTensor(const tensorflow::NodeDef& a, int input_a,
                const tensorflow::NodeDef& b, int input_b);

// Copies what `names` lists, and internal attrs that hold of any node.
void CopyAttrs(const tensorflow::NodeDef& from,
               const std::vector<std::string>& names, tensorflow::NodeDef* to);

struct Forward {
  tensorflow::NodeDef* norm = nullptr;
  tensorflow::NodeDef* add = nullptr;  // nullptr: there is none
  int side_input = 0;                  // which of its inputs is not the norm's
  tensorflow::NodeDef* activation = nullptr;

  tensorflow::NodeDef* BehindNorm() const {
    return add != nullptr ? add : activation;
  }
};

struct Backward {
  tensorflow::NodeDef* mask = nullptr;  // ReluGrad
  tensorflow::NodeDef* gradient = nullptr;
};

// Applies the rules to one graph.
class Fuser {
 public:
  Fuser(const FusionOptions& options, tensorflow::GraphDef* graph)
      : options_(options), graph_(graph) {}

  std::vector<Fusion> Run();

 private:
  // forward_rule.cc
  std::vector<Forward> ForwardsBefore(tensorflow::NodeDef* activation);
  void TryForward(tensorflow::NodeDef* activation);
  std::string ForwardRefusal(const Forward& forward);
  std::string AdditionRefusal(const Forward& forward);
  void FuseForward(const Forward& forward);
  void MaskFromY(const tensorflow::NodeDef& norm);
  bool LeftToConvolution(const Forward& forward);
  void TakeRemapped(tensorflow::NodeDef* node);

  // backward_rule.cc
  void TryBackward(tensorflow::NodeDef* mask);
  std::vector<tensorflow::NodeDef*> GradientsBehind(
      const tensorflow::NodeDef& mask);
  std::string BackwardRefusal(const Backward& backward);
  void FuseBackward(const Backward& backward);
  const tensorflow::NodeDef* ForwardOf(const Backward& backward);
  std::string CoefficientsFor(const Backward& backward);
  void BypassUnbroadcasts(const tensorflow::NodeDef& mask);
  bool IsIdentityUnbroadcast(const tensorflow::NodeDef& mask,
                             const tensorflow::NodeDef& reshape);
  void RemoveDeadNodes(tensorflow::NodeDef* node);

  // fusion_rules.cc
  std::string NodeRefusal(const tensorflow::NodeDef& node);
  std::string DeviceRefusal(const tensorflow::NodeDef& node);
  std::string IntermediateRefusal(const tensorflow::NodeDef& node,
                                  const tensorflow::NodeDef& consumer);
  void Replace(tensorflow::NodeDef* removed, const std::string& by);
  void MoveConsumers(const std::string& from, const std::string& to,
                     const std::map<int, TensorName>& moved);
  void RenameColocations();

  const FusionOptions& options_;
  IndexedGraph graph_;
  // Removed node -> its replacement; "": it has none.
  std::map<std::string, std::string> replaced_;
  std::vector<Fusion> fusions_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPTIMIZER_FUSER_H_
