// What both directions of the fusion share: kinds of nodes, reasons to refuse a
// chain, rewiring; and the order in which the rules are applied.

#include "cc/optimizer/fusion_rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "cc/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::DeviceNameUtils;
using ::tensorflow::NodeDef;

// An op's name without this library's prefix.
std::string BaseName(const std::string& op) {
  constexpr char kPrefix[] = "TfBnOps>";
  const size_t length = sizeof(kPrefix) - 1;
  return op.compare(0, length, kPrefix) == 0 ? op.substr(length) : op;
}

bool IsActivation(const NodeDef& node) {
  return node.op() == "Relu" || node.op() == "Relu6";
}

// Ops that read only the shape of a tensor.
bool ReadsShapeAlone(const NodeDef& node) {
  static const std::set<std::string>* const kOps =
      new std::set<std::string>{"Shape", "ShapeN", "Size", "Rank"};
  return kOps->count(node.op()) != 0;
}

std::string StringAttr(const NodeDef& node, const std::string& name,
                       const std::string& otherwise) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? otherwise : found->second.s();
}

}  // namespace

// ---- Kinds of nodes, and their attrs -------------------------------------

bool IsPlainNorm(const NodeDef& node) {
  static const std::set<std::string>* const kOps = new std::set<std::string>{
      "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"};
  return kOps->count(BaseName(node.op())) != 0;
}

bool IsFusedNorm(const NodeDef& node) {
  return node.op() == kFusedForward || node.op() == kRemapped;
}

bool IsGradient(const NodeDef& node) {
  static const std::set<std::string>* const kOps = new std::set<std::string>{
      "FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"};
  return kOps->count(BaseName(node.op())) != 0;
}

bool IsAddition(const NodeDef& node) {
  return node.op() == "Add" || node.op() == "AddV2";
}

bool IsNorm(const NodeDef& node) {
  return IsPlainNorm(node) || (IsFusedNorm(node) && SideInputsOf(node) == 0 &&
                               ActivationOf(node) == "Identity");
}

std::string ActivationOfGradient(const NodeDef& node) {
  if (node.op() == "ReluGrad") return "Relu";
  return node.op() == "Relu6Grad" ? "Relu6" : "";
}

bool IsTraining(const NodeDef& node) {
  const auto found = node.attr().find("is_training");
  return found == node.attr().end() || found->second.b();
}

std::string ActivationOf(const NodeDef& norm) {
  return IsFusedNorm(norm) ? StringAttr(norm, "activation_mode", "Identity")
                           : "Identity";
}

int SideInputsOf(const NodeDef& norm) {
  const auto found = norm.attr().find("num_side_inputs");
  return found == norm.attr().end() ? 0 : static_cast<int>(found->second.i());
}

std::vector<std::string> DataInputs(const NodeDef& node) {
  std::vector<std::string> result;
  for (const std::string& input : node.input()) {
    if (input[0] != '^') result.push_back(input);
  }
  return result;
}

std::vector<std::string> ControlInputs(
    const std::vector<const NodeDef*>& nodes) {
  std::set<std::string> result;
  for (const NodeDef* const node : nodes) {
    for (const std::string& input : node->input()) {
      if (input[0] == '^') result.insert(input);
    }
  }
  return {result.begin(), result.end()};
}

bool SameTensor(const NodeDef& a, int input_a, const NodeDef& b, int input_b) {
  return input_a < a.input_size() && input_b < b.input_size() &&
         TensorName::Parse(a.input(input_a)) ==
             TensorName::Parse(b.input(input_b));
}

void CopyAttrs(const NodeDef& from, const std::vector<std::string>& names,
               NodeDef* to) {
  for (const std::string& name : names) {
    const auto found = from.attr().find(name);
    if (found != from.attr().end()) {
      (*to->mutable_attr())[name] = found->second;
    }
  }
  for (const auto& [name, value] : from.attr()) {
    if (name[0] == '_' && name != "_output_shapes" && name != "_class") {
      to->mutable_attr()->insert({name, value});
    }
  }
}

// ---- The pass ------------------------------------------------------------

std::vector<Fusion> Fuser::Run() {
  const int size = graph_.size();
  for (int i = 0; i < size; ++i) {
    NodeDef* const node = graph_.node(i);
    if (graph_.IsRemoved(*node)) continue;
    if (IsActivation(*node)) TryForward(node);
    if (node->op() == kRemapped) TakeRemapped(node);
  }
  for (int i = 0; i < size; ++i) {
    NodeDef* const node = graph_.node(i);
    if (graph_.IsRemoved(*node)) continue;
    if (!ActivationOfGradient(*node).empty()) TryBackward(node);
  }
  RenameColocations();
  graph_.Compact();
  return fusions_;
}

// ---- Reasons to refuse, and rewiring -------------------------------------

std::string Fuser::DeviceRefusal(const NodeDef& node) {
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

// Why the batch norm op, or its gradient, has no fused counterpart.
std::string Fuser::NodeRefusal(const NodeDef& node) {
  for (const auto& [name, types] :
       std::map<std::string, std::set<tensorflow::DataType>>{
           {"T",
            {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16,
             tensorflow::DT_FLOAT}},
           {"U", {tensorflow::DT_FLOAT}}}) {
    const auto found = node.attr().find(name);
    if (found != node.attr().end() && types.count(found->second.type()) == 0) {
      return "its attr " + name + " is " +
             tensorflow::DataType_Name(found->second.type());
    }
  }
  return DeviceRefusal(node);
}

// Why the node cannot be removed when it is fused with `consumer`.
std::string Fuser::IntermediateRefusal(const NodeDef& node,
                                       const NodeDef& consumer) {
  if (options_.preserved.count(node.name()) != 0) {
    return node.name() + " is kept by name";
  }
  if (node.device() != consumer.device()) {
    return node.name() + " and " + consumer.name() +
           " are on different devices";
  }
  for (const IndexedGraph::Consumer& other : graph_.Consumers(node.name())) {
    if (other.port == TensorName::kControl) {
      return other.node->name() + " has a control edge from " + node.name();
    }
    const bool same_edge =
        other.node == &consumer && other.port == 0 &&
        std::count_if(consumer.input().begin(), consumer.input().end(),
                      [&](const std::string& input) {
                        return TensorName::Parse(input) ==
                               TensorName{node.name(), 0};
                      }) == 1;
    if (other.port == 0 && !same_edge && !ReadsShapeAlone(*other.node)) {
      return other.node->name() + " reads " + node.name() + " too";
    }
  }
  return "";
}

// Rewires the consumers of `from`: output -> tensor. Outputs that are not
// in `moved` become those of `to`.
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

bool IsBatchNormOp(const std::string& op) {
  NodeDef node;
  node.set_op(op);
  return IsPlainNorm(node) || IsFusedNorm(node) || IsGradient(node);
}

std::vector<Fusion> FusePatterns(const FusionOptions& options,
                                 tensorflow::GraphDef* graph) {
  return Fuser(options, graph).Run();
}

}  // namespace tf_bn_ops
