// What both directions of the fusion share: kinds of nodes, reasons to refuse a
// chain, rewiring; and the order in which the rules are applied.

#include "cc/tf/optimizer/fusion_rules.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/tf/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_bn_ops {

using ::tensorflow::DeviceNameUtils;
using ::tensorflow::NodeDef;

namespace {

// An op's name without this library's prefix.
std::string BaseName(const std::string& op) {
  constexpr char kPrefix[] = "TfBnOps>";
  const size_t length = sizeof(kPrefix) - 1;
  return op.compare(0, length, kPrefix) == 0 ? op.substr(length) : op;
}

bool IsPlainNormOp(const std::string& op) {
  return IsOneOf(BaseName(op),
                 {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"});
}

bool IsFusedNormOp(const std::string& op) {
  return op == kFusedForward || op == kRemapped;
}

bool IsGradientOp(const std::string& op) {
  return IsOneOf(BaseName(op), {"FusedBatchNormGrad", "FusedBatchNormGradV2",
                                "FusedBatchNormGradV3"});
}

// The attr, or what the OpDef has as its default.
tensorflow::AttrValue Attr(const NodeDef& node, const std::string& name,
                           const tensorflow::AttrValue& otherwise) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? otherwise : found->second;
}

std::string WrongType(const NodeDef& node, const std::string& name,
                      std::initializer_list<tensorflow::DataType> types) {
  const auto type = Attr(node, name, {}).type();
  const bool is_right = type == tensorflow::DT_INVALID ||
                        std::count(types.begin(), types.end(), type) != 0;
  return is_right
             ? ""
             : "its attr " + name + " is " + tensorflow::DataType_Name(type);
}

}  // namespace

// ---- Kinds of nodes, and their attrs -------------------------------------

bool IsPlainNorm(const NodeDef& node) {
  return IsPlainNormOp(node.op()) && HasDataInputs(node, kForwardInputs);
}

bool IsFusedNorm(const NodeDef& node) {
  return IsFusedNormOp(node.op()) && HasDataInputs(node, kForwardInputs);
}

bool IsNorm(const NodeDef& node) {
  return IsPlainNorm(node) || (IsFusedNorm(node) && SideInputsOf(node) == 0 &&
                               ActivationOf(node) == "Identity");
}

bool IsGradient(const NodeDef& node) {
  return IsGradientOp(node.op()) && HasDataInputs(node, kGradInputs);
}

bool IsAddition(const NodeDef& node) {
  return IsOneOf(node.op(), {"Add", "AddV2"}) && HasDataInputs(node, 2);
}

bool IsActivation(const NodeDef& node) {
  return IsOneOf(node.op(), {"Relu", "Relu6"}) && HasDataInputs(node, 1);
}

bool IsGate(const NodeDef& node) {
  return IsOneOf(node.op(), {"Identity", "StopGradient", "EnsureShape"}) &&
         HasDataInputs(node, 1);
}

bool IsShapeReader(const NodeDef& node) {
  return IsOneOf(node.op(), {"Shape", "ShapeN", "Size", "Rank"});
}

std::string ActivationOfGradient(const NodeDef& node) {
  if (!HasDataInputs(node, 2)) return "";
  if (node.op() == "ReluGrad") return "Relu";
  return node.op() == "Relu6Grad" ? "Relu6" : "";
}

bool IsBatchNormOp(const std::string& op) {
  return IsPlainNormOp(op) || IsFusedNormOp(op) || IsGradientOp(op);
}

bool IsTraining(const NodeDef& node) {
  tensorflow::AttrValue yes;
  yes.set_b(true);
  return Attr(node, "is_training", yes).b();
}

std::string ActivationOf(const NodeDef& node) {
  tensorflow::AttrValue identity;
  identity.set_s("Identity");
  return Attr(node, "activation_mode", identity).s();
}

int SideInputsOf(const NodeDef& norm) {
  return static_cast<int>(Attr(norm, "num_side_inputs", {}).i());
}

std::string DataFormatOf(const NodeDef& node) {
  tensorflow::AttrValue channels_last;
  channels_last.set_s("NHWC");
  return Attr(node, "data_format", channels_last).s();
}

bool IsOneOf(const std::string& op, std::initializer_list<const char*> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

bool HasDataInputs(const NodeDef& node, int number) {
  return node.input_size() >= number && node.input(number - 1)[0] != '^';
}

std::vector<std::string> DataInputs(const NodeDef& node) {
  std::vector<std::string> result;
  for (const std::string& input : node.input()) {
    if (input[0] != '^') result.push_back(input);
  }
  return result;
}

std::vector<std::string> ControlInputs(const std::vector<NodeDef*>& nodes) {
  std::set<std::string> result;
  for (const NodeDef* const node : nodes) {
    for (const std::string& input : node->input()) {
      if (input[0] == '^') result.insert(input);
    }
  }
  return {result.begin(), result.end()};
}

bool SameTensor(const NodeDef& a, int input_a, const NodeDef& b, int input_b) {
  return TensorName::Parse(a.input(input_a)) ==
         TensorName::Parse(b.input(input_b));
}

void CopyAttrs(const NodeDef& from, const std::vector<std::string>& names,
               NodeDef* to) {
  for (const auto& [name, value] : from.attr()) {
    const bool is_internal =
        name[0] == '_' && name != "_output_shapes" && name != "_class";
    if (is_internal ||
        std::find(names.begin(), names.end(), name) != names.end()) {
      to->mutable_attr()->insert({name, value});
    }
  }
}

// ---- The pass ------------------------------------------------------------

std::vector<Fusion> Fuser::Run() {
  for (int i = 0; options_.dangling_is_dead && i < graph_.size(); ++i) {
    RemoveUnread(graph_.node(i)->name(), "");
  }
  BypassUnbroadcasts();
  // The derivative first: it reads y, which the fused op has no more.
  for (int i = 0; i < graph_.size(); ++i) {
    NodeDef* const node = graph_.node(i);
    if (IsGradient(*node)) Plan(SlopeChains(node), /*is_backward=*/true);
  }
  FusePlanned(/*is_backward=*/true);
  for (int i = 0; i < graph_.size(); ++i) {
    NodeDef* const node = graph_.node(i);
    if (IsNorm(*node)) Plan(SmoothChains(node), /*is_backward=*/false);
  }
  for (int i = 0; i < graph_.size(); ++i) {
    NodeDef* const node = graph_.node(i);
    if (IsActivation(*node)) Plan(ChainsBefore(node), /*is_backward=*/false);
    TakeRemapped(node);
  }
  FusePlanned(/*is_backward=*/false);
  for (int i = 0; i < graph_.size(); ++i) {
    NodeDef* const node = graph_.node(i);
    if (ActivationOfGradient(*node).empty()) continue;
    RefuseGated(*node);
    Plan(ChainsBehind(node), /*is_backward=*/true);
  }
  FusePlanned(/*is_backward=*/true);
  RenameColocations();
  graph_.Compact();
  return fusions_;
}

// The gradient of an addition or a product whose inputs had shapes that were
// not known in full is Reshape(Sum(gradient, axes), shape): the sum over the
// axes along which an input was broadcast. Where the result has the shape of
// the gradient after all, those axes have one element, and it is the identity.
// Bypasses it, in a graph with the gradient of a norm.
void Fuser::BypassUnbroadcasts() {
  bool has_gradient = false;
  for (int i = 0; i < graph_.size(); ++i) {
    has_gradient |= IsGradient(*graph_.node(i));
  }
  for (int i = 0; has_gradient && i < graph_.size(); ++i) {
    NodeDef* const reshape = graph_.node(i);
    NodeDef* const sum = graph_.Producer(*reshape, 0);
    NodeDef* const axes = sum == nullptr ? nullptr : graph_.Producer(*sum, 1);
    if (axes == nullptr || reshape->op() != "Reshape" || sum->op() != "Sum" ||
        axes->op() != "BroadcastGradientArgs" || !HasDataInputs(*axes, 2)) {
      continue;
    }
    // What one of them waits for would run no more.
    std::vector<NodeDef*> nodes = {reshape, sum, axes};
    for (NodeDef* const each :
         {graph_.Producer(*reshape, 1), graph_.Producer(*axes, 0),
          graph_.Producer(*axes, 1)}) {
      if (each != nullptr && each->op() == "Shape") nodes.push_back(each);
    }
    const TensorName gradient = TensorName::Parse(sum->input(0));
    if (!ControlInputs(nodes).empty() ||
        !options_.same_shape({reshape->name(), 0}, gradient)) {
      continue;
    }
    MoveConsumers(reshape->name(), reshape->name(), {{0, gradient}});
    RemoveUnread(reshape->name(), "");
  }
}

// Plans the first of the chains, of which one at most can be fused, that is not
// refused; else all refusals are reported.
void Fuser::Plan(const std::vector<Chain>& chains, bool is_backward) {
  std::vector<Fusion> refused;
  for (const Chain& chain : chains) {
    const std::vector<NodeDef*>& path =
        chain.path.empty() ? chain.nodes : chain.path;
    const auto is_planned = [this](const NodeDef* node) {
      return in_plan_.count(node) != 0;
    };
    if (std::any_of(path.begin(), path.end(), is_planned)) continue;
    const NodeDef* const named = is_backward ? chain.last() : chain.first();
    Fusion fusion = {named->name(), is_backward, ""};
    for (const NodeDef* const each : chain.nodes) {
      if (each == named) continue;
      if (!fusion.partners.empty()) fusion.partners += ", ";
      fusion.partners += each->name();
    }
    fusion.refusal = !is_backward           ? ForwardRefusal(chain)
                     : chain.smooth.empty() ? BackwardRefusal(chain)
                                            : SlopeRefusal(chain);
    if (fusion.refusal.empty()) {
      planned_.push_back({chain, path, fusions_.size()});
      in_plan_.insert(path.begin(), path.end());
      fusions_.push_back(fusion);
      return;
    }
    refused.push_back(fusion);
  }
  fusions_.insert(fusions_.end(), refused.begin(), refused.end());
}

void Fuser::FusePlanned(bool is_backward) {
  std::vector<std::vector<NodeDef*>> paths;
  for (const Planned& each : planned_) paths.push_back(each.path);
  const std::vector<bool> cyclic = graph_.WouldBeOnCycles(paths);
  for (size_t i = 0; i < planned_.size(); ++i) {
    const auto& [chain, path, fusion] = planned_[i];
    if (cyclic[i]) {
      fusions_[fusion].refusal =
          !is_backward
              ? "what is added or waited for depends on its other outputs"
              : "its other inputs depend on " + (chain.smooth.empty()
                                                     ? chain.first()->name()
                                                     : chain.y_backprop.node);
    } else if (!is_backward) {
      FuseForward(chain);
    } else if (chain.smooth.empty()) {
      FuseBackward(chain);
    } else {
      FuseSlope(chain);
    }
  }
  planned_.clear();
  in_plan_.clear();
}

// ---- Reasons to refuse, and rewiring -------------------------------------

// Why the batch norm op, or its gradient, has no fused counterpart.
std::string Fuser::NodeRefusal(const NodeDef& node) {
  for (const std::string& wrong :
       {WrongType(node, "T",
                  {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16,
                   tensorflow::DT_FLOAT}),
        WrongType(node, "U", {tensorflow::DT_FLOAT})}) {
    if (!wrong.empty()) return wrong;
  }
  DeviceNameUtils::ParsedName parsed;
  if (!DeviceNameUtils::ParseFullName(node.device(), &parsed)) {
    return "its device " + node.device() + " is not a valid device name";
  }
  if (parsed.has_type ? parsed.type == "CPU" : options_.unplaced_is_cpu) {
    return "";
  }
  return parsed.has_type ? "it is on the device " + node.device()
                         : "its device is not known";
}

// Why a node cannot go when it is fused with others and `last`; what else may
// read it is in `own`.
std::string Fuser::RemovalRefusal(const std::vector<NodeDef*>& removed,
                                  const NodeDef& last, bool others_may_read,
                                  const std::vector<NodeDef*>& own) {
  for (const NodeDef* const node : removed) {
    if (options_.preserved.count(node->name()) != 0) {
      return node->name() + " is kept by name";
    }
    if (node->device() != last.device()) {
      return node->name() + " and " + last.name() + " are on different devices";
    }
    for (const IndexedGraph::Consumer& other : graph_.Consumers(node->name())) {
      const bool is_own =
          other.node == &last || IsShapeReader(*other.node) ||
          std::count(removed.begin(), removed.end(), other.node) != 0 ||
          std::count(own.begin(), own.end(), other.node) != 0;
      if (other.port == TensorName::kControl) {
        return other.node->name() + " has a control edge from " + node->name();
      }
      if (other.port == 0 && !others_may_read && !is_own) {
        return other.node->name() + " reads " + node->name() + " too";
      }
    }
  }
  return "";
}

// Rewires the consumers of `from`: output -> tensor. Outputs that are not
// in `moved` become outputs of `to`.
void Fuser::MoveConsumers(const std::string& from, const std::string& to,
                          const std::map<int, TensorName>& moved) {
  for (const IndexedGraph::Consumer& consumer : graph_.Consumers(from)) {
    const auto found = moved.find(consumer.port);
    graph_.SetInput(
        consumer.node, consumer.input,
        found == moved.end() ? TensorName{to, consumer.port} : found->second);
  }
}

void Fuser::Replace(NodeDef* removed, const std::string& by) {
  replaced_[removed->name()] = by;
  graph_.Remove(removed);
}

// Removes a node that nothing reads and that does nothing else, and then what
// it alone read.
void Fuser::RemoveUnread(const std::string& node, const std::string& by) {
  std::vector<std::string> names = {node};
  while (!names.empty()) {
    NodeDef* const each = graph_.Find(names.back());
    names.pop_back();
    if (each == nullptr || options_.preserved.count(each->name()) != 0 ||
        graph_.NumConsumers(each->name()) != 0 ||
        !(IsElementwise(*each) ||
          IsOneOf(each->op(), {"Reshape", "Sum", "BroadcastGradientArgs",
                               "Shape", "ZerosLike"}))) {
      continue;
    }
    for (const std::string& input : DataInputs(*each)) {
      names.push_back(TensorName::Parse(input).node);
    }
    Replace(each, by);
  }
}

// Moves colocation constraints from removed nodes to what replaced them; those
// on nodes that nothing replaced go, since TensorFlow imports no graph with a
// constraint on a missing node.
void Fuser::RenameColocations() {
  const std::string prefix = "loc:@";
  for (int i = 0; i < graph_.size(); ++i) {
    auto* const attrs = graph_.node(i)->mutable_attr();
    const auto found = attrs->find("_class");
    if (found == attrs->end()) continue;
    auto* const values = found->second.mutable_list()->mutable_s();
    for (int at = values->size() - 1; at >= 0; --at) {
      std::string* const value = values->Mutable(at);
      if (value->compare(0, prefix.size(), prefix) != 0) continue;
      std::string node = value->substr(prefix.size());
      for (auto by = replaced_.find(node); by != replaced_.end();
           by = replaced_.find(node)) {
        node = by->second;
      }
      if (node.empty()) {
        values->DeleteSubrange(at, 1);
      } else {
        *value = prefix + node;
      }
    }
    if (values->empty()) attrs->erase(found);
  }
}

std::string AsLine(const Fusion& fusion) {
  return fusion.node + (fusion.is_backward ? "\tbackward\t" : "\tforward\t") +
         fusion.refusal + "\t" +
         (fusion.refusal.empty() ? fusion.partners : "");
}

std::vector<Fusion> FusePatterns(const FusionOptions& options,
                                 tensorflow::GraphDef* graph) {
  std::vector<Fusion> places;
  std::map<std::pair<std::string, bool>, size_t> index;
  for (const Fusion& fusion : Fuser(options, graph).Run()) {
    // Several rules may refuse a place.
    const auto [place, is_new] =
        index.try_emplace({fusion.node, fusion.is_backward}, places.size());
    if (is_new) {
      places.push_back(fusion);
    } else if (fusion.refusal.empty()) {
      places[place->second] = fusion;
    }
  }
  return places;
}

}  // namespace tf_bn_ops
