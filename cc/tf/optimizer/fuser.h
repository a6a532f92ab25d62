// The pass that fusion_rules.h describes, and what its parts share: which node
// is what, the state while a graph is rewritten, and why a chain must not be
// fused.
//
//   fusion_rules.cc    both directions
//   forward_rule.cc    norm -> [addition] -> activation
//   backward_rule.cc   gradient of an activation -> gradient of norm
//   smooth_rule.cc     both directions of smooth activations

#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cc/tf/optimizer/fusion_rules.h"
#include "cc/tf/optimizer/indexed_graph.h"
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
constexpr int kForwardInputs = 5;        // without a side input
constexpr int kForwardCoefficients = 5;  // Output of V3 and FusedBatchNormEx.
constexpr int kGradYBackprop = 0;
constexpr int kGradX = 1;
constexpr int kGradScale = 2;
constexpr int kGradReserveSpace2 = 4;
constexpr int kGradInputs = kGradReserveSpace2 + 1;  // up to it
constexpr int kGradReserveSpace3 = 5;                // of V3
constexpr int kGradOffset = 6;                       // of FusedBatchNormGradEx
constexpr int kSideInputBackprop = 5;
constexpr int kFeatures = 1;  // of ReluGrad

// Kinds of nodes, by op, attrs and number of inputs.
bool IsPlainNorm(const tensorflow::NodeDef& node);
bool IsFusedNorm(const tensorflow::NodeDef& node);
// A norm that an activation can be fused into.
bool IsNorm(const tensorflow::NodeDef& node);
bool IsGradient(const tensorflow::NodeDef& node);
bool IsAddition(const tensorflow::NodeDef& node);
bool IsActivation(const tensorflow::NodeDef& node);
// What passes a tensor on: it may wait for other nodes, or end gradients.
bool IsGate(const tensorflow::NodeDef& node);
// An op whose value smooth_rule.cc knows.
bool IsElementwise(const tensorflow::NodeDef& node);
bool IsShapeReader(const tensorflow::NodeDef& node);
// The activation whose gradient the node is; empty if it is none.
std::string ActivationOfGradient(const tensorflow::NodeDef& node);

// Attrs, by the OpDefs' defaults where they are missing.
bool IsTraining(const tensorflow::NodeDef& node);
std::string ActivationOf(const tensorflow::NodeDef& node);
int SideInputsOf(const tensorflow::NodeDef& norm);
std::string DataFormatOf(const tensorflow::NodeDef& node);

bool IsOneOf(const std::string& op, std::initializer_list<const char*> ops);
bool HasDataInputs(const tensorflow::NodeDef& node, int number);
std::vector<std::string> DataInputs(const tensorflow::NodeDef& node);
std::vector<std::string> ControlInputs(
    const std::vector<tensorflow::NodeDef*>& nodes);
bool SameTensor(const tensorflow::NodeDef& a, int input_a,
                const tensorflow::NodeDef& b, int input_b);

// Copies what `names` lists, and internal attrs that hold of any node.
void CopyAttrs(const tensorflow::NodeDef& from,
               const std::vector<std::string>& names, tensorflow::NodeDef* to);

// Nodes that become one, which has the name of the last.
struct Chain {
  // Forward: norm, addition if there is one, activation. Backward: ReluGrad,
  // gradient of norm; of a smooth activation norm, addition, gradient.
  std::vector<tensorflow::NodeDef*> nodes;
  int side_input = 0;  // which input of the addition is not the norm's
  // Of a smooth activation its name, and the nodes between it and what it is
  // applied to, which read that and constants alone: they are on no other
  // cycle. Backward also what arrives at it.
  std::string smooth = {};
  float alpha = 0;  // Of a leaky ReLU; another one has none.
  std::vector<tensorflow::NodeDef*> inner = {};
  TensorName y_backprop = {};
  // Forward also the IdentityNs that hold a gradient of it.
  std::vector<tensorflow::NodeDef*> identities = {};
  // Each reads the one before: the chain must not be on a cycle once they are
  // one. Empty: all of `nodes`.
  std::vector<tensorflow::NodeDef*> path = {};

  tensorflow::NodeDef* first() const { return nodes.front(); }
  tensorflow::NodeDef* last() const { return nodes.back(); }
  tensorflow::NodeDef* addition() const {
    return nodes.size() > 2 ? nodes[1] : nullptr;
  }
  // Those that a fused forward op replaces.
  std::vector<tensorflow::NodeDef*> removed() const {
    std::vector<tensorflow::NodeDef*> result(nodes.begin(), nodes.end() - 1);
    result.insert(result.end(), inner.begin(), inner.end());
    return result;
  }
};

// Applies the rules to one graph.
class Fuser {
 public:
  Fuser(const FusionOptions& options, tensorflow::GraphDef* graph)
      : options_(options), graph_(graph) {}

  std::vector<Fusion> Run();

 private:
  struct Planned {
    Chain chain;
    std::vector<tensorflow::NodeDef*> path;
    size_t fusion;  // its index in fusions_
  };

  // fusion_rules.cc
  void BypassUnbroadcasts();
  void Plan(const std::vector<Chain>& chains, bool is_backward);
  void FusePlanned(bool is_backward);
  std::string NodeRefusal(const tensorflow::NodeDef& node);
  std::string RemovalRefusal(const std::vector<tensorflow::NodeDef*>& removed,
                             const tensorflow::NodeDef& last,
                             bool others_may_read,
                             const std::vector<tensorflow::NodeDef*>& own = {});
  void Replace(tensorflow::NodeDef* removed, const std::string& by);
  void RemoveUnread(const std::string& node, const std::string& by);
  void MoveConsumers(const std::string& from, const std::string& to,
                     const std::map<int, TensorName>& moved);
  void RenameColocations();

  // forward_rule.cc
  std::vector<Chain> ChainsBefore(tensorflow::NodeDef* activation);
  std::string ForwardRefusal(const Chain& chain);
  std::string ShapeRefusal(const Chain& chain);
  void FuseForward(const Chain& chain);
  void MaskFromY(const tensorflow::NodeDef& norm);
  bool LeftToConvolution(const Chain& chain);
  void TakeRemapped(tensorflow::NodeDef* node);

  // backward_rule.cc
  std::vector<Chain> ChainsBehind(tensorflow::NodeDef* mask);
  void RefuseGated(const tensorflow::NodeDef& mask);
  std::string BackwardRefusal(const Chain& chain);
  void FuseBackward(const Chain& chain);
  void MakeGradEx(tensorflow::NodeDef* gradient,
                  const std::vector<std::string>& of,
                  const std::string& activation, bool has_side_input,
                  const std::vector<std::string>& controls);
  const tensorflow::NodeDef* ForwardOf(const Chain& chain);

  // smooth_rule.cc
  std::vector<tensorflow::NodeDef*> IdentityNsOf(const tensorflow::NodeDef& end,
                                                 const TensorName& y);
  std::string BypassRefusal(const tensorflow::NodeDef& identity,
                            const std::vector<tensorflow::NodeDef*>& removed);
  void Bypass(tensorflow::NodeDef* identity);
  std::vector<Chain> SmoothChains(tensorflow::NodeDef* norm);
  std::vector<Chain> SlopeChains(tensorflow::NodeDef* gradient);
  std::string SlopeRefusal(const Chain& chain);
  void FuseSlope(const Chain& chain);

  const FusionOptions& options_;
  IndexedGraph graph_;
  // Removed node -> its replacement; "": it has none.
  std::unordered_map<std::string, std::string> replaced_;
  // Product with a derivative that no longer exists -> the gradient of a norm
  // whose side_input_backprop it is.
  std::unordered_map<std::string, std::string> products_;
  std::vector<Planned> planned_;
  std::unordered_set<const tensorflow::NodeDef*> in_plan_;
  std::vector<Fusion> fusions_;
};

}  // namespace tf_bn_ops
