#include "cc/optimizer/fusion_rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::DeviceNameUtils;
using ::tensorflow::NodeDef;

constexpr char kFusedForward[] = "TfBnOps>FusedBatchNormEx";
constexpr char kFusedBackward[] = "TfBnOps>FusedBatchNormGradEx";
constexpr char kRemapped[] = "_FusedBatchNormEx";

// Inputs and outputs by the OpDefs.
constexpr int kNormInputs = 5;  // x, scale, offset, mean, variance
constexpr int kX = 0;
constexpr int kScale = 1;
constexpr int kOffset = 2;
constexpr int kForwardCoefficients = 5;  // output of FusedBatchNormEx
constexpr int kGradYBackprop = 0;
constexpr int kGradX = 1;
constexpr int kGradScale = 2;
constexpr int kGradInputs = 5;  // up to reserve_space_2
constexpr int kSideInputBackprop = 5;
constexpr int kFeatures = 1;  // of ReluGrad

// An op's name without this library's prefix.
std::string BaseName(const std::string& op) {
  constexpr char kPrefix[] = "TfBnOps>";
  const size_t length = sizeof(kPrefix) - 1;
  return op.compare(0, length, kPrefix) == 0 ? op.substr(length) : op;
}

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

bool IsActivation(const NodeDef& node) {
  return node.op() == "Relu" || node.op() == "Relu6";
}

// The activation whose gradient the node is; empty if it is none.
std::string ActivationOfGradient(const NodeDef& node) {
  if (node.op() == "ReluGrad") return "Relu";
  return node.op() == "Relu6Grad" ? "Relu6" : "";
}

// Ops that read nothing of a tensor but its shape.
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

bool IsNorm(const NodeDef& node) {
  return IsPlainNorm(node) || (IsFusedNorm(node) && SideInputsOf(node) == 0 &&
                               ActivationOf(node) == "Identity");
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

// Copies what `names` lists, and internal attrs that hold of any node.
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

struct Forward {
  NodeDef* norm = nullptr;
  NodeDef* add = nullptr;  // nullptr: there is none
  int side_input = 0;      // which of its inputs is not the norm's
  NodeDef* activation = nullptr;

  NodeDef* BehindNorm() const { return add != nullptr ? add : activation; }
};

struct Backward {
  NodeDef* mask = nullptr;  // ReluGrad
  NodeDef* gradient = nullptr;
};

class Fuser {
 public:
  Fuser(const FusionOptions& options, tensorflow::GraphDef* graph)
      : options_(options), graph_(graph) {}

  std::vector<Fusion> Run();

 private:
  std::vector<Forward> ForwardsBefore(NodeDef* activation);
  void TryForward(NodeDef* activation);
  std::string ForwardRefusal(const Forward& forward);
  std::string AdditionRefusal(const Forward& forward);
  void FuseForward(const Forward& forward);
  void TakeRemapped(NodeDef* node);

  void TryBackward(NodeDef* mask);
  std::vector<NodeDef*> GradientsBehind(const NodeDef& mask);
  std::string BackwardRefusal(const Backward& backward);
  void FuseBackward(const Backward& backward);
  const NodeDef* ForwardOf(const Backward& backward);
  std::string CoefficientsFor(const Backward& backward);

  std::string NodeRefusal(const NodeDef& node);
  std::string DeviceRefusal(const NodeDef& node);
  std::string IntermediateRefusal(const NodeDef& node, const NodeDef& reader);
  bool LeftToConvolution(const Forward& forward);
  bool SameTensor(const NodeDef& a, int input_a, const NodeDef& b, int input_b);

  void BypassUnbroadcasts(const NodeDef& mask);
  bool IsIdentityUnbroadcast(const NodeDef& reshape);
  void RemoveUnread(NodeDef* node);
  void Replace(NodeDef* removed, const NodeDef& by);
  void MoveReaders(const std::string& from, const std::string& to,
                   const std::map<int, TensorName>& moved);
  void RenameColocations();

  const FusionOptions& options_;
  IndexedGraph graph_;
  std::map<std::string, std::string> replaced_;  // removed node -> its heir
  std::vector<Fusion> fusions_;
};

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

// ---- What both directions ask --------------------------------------------

std::string Fuser::DeviceRefusal(const NodeDef& node) {
  DeviceNameUtils::ParsedName parsed;
  if (!DeviceNameUtils::ParseFullName(node.device(), &parsed)) {
    return "its device " + node.device() + " is no name of a device";
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

// Why the node cannot disappear, `reader` being the only one that is fused with
// it.
std::string Fuser::IntermediateRefusal(const NodeDef& node,
                                       const NodeDef& reader) {
  if (options_.preserved.count(node.name()) != 0) {
    return node.name() + " is kept by name";
  }
  if (node.device() != reader.device()) {
    return node.name() + " and " + reader.name() + " are on different devices";
  }
  for (const IndexedGraph::Reader& other : graph_.Readers(node.name())) {
    if (other.port == TensorName::kControl) {
      return other.node->name() + " has a control edge from " + node.name();
    }
    const bool same_edge =
        other.node == &reader && other.port == 0 &&
        std::count_if(reader.input().begin(), reader.input().end(),
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

bool Fuser::SameTensor(const NodeDef& a, int input_a, const NodeDef& b,
                       int input_b) {
  return input_a < a.input_size() && input_b < b.input_size() &&
         TensorName::Parse(a.input(input_a)) ==
             TensorName::Parse(b.input(input_b));
}

// Has readers of some outputs of `from` read other tensors: port -> tensor.
// Ports that are not in `moved` become those of `to`.
void Fuser::MoveReaders(const std::string& from, const std::string& to,
                        const std::map<int, TensorName>& moved) {
  for (const IndexedGraph::Reader& reader : graph_.Readers(from)) {
    const auto found = moved.find(reader.port);
    graph_.SetInput(
        reader.node, reader.input,
        found == moved.end() ? TensorName{to, reader.port} : found->second);
  }
}

void Fuser::Replace(NodeDef* removed, const NodeDef& by) {
  replaced_[removed->name()] = by.name();
  graph_.Remove(removed);
}

// Nodes may be colocated with one that is gone.
void Fuser::RenameColocations() {
  if (replaced_.empty()) return;
  const std::string prefix = "loc:@";
  for (int i = 0; i < graph_.size(); ++i) {
    const auto found = graph_.node(i)->mutable_attr()->find("_class");
    if (found == graph_.node(i)->mutable_attr()->end()) continue;
    for (std::string& value : *found->second.mutable_list()->mutable_s()) {
      if (value.compare(0, prefix.size(), prefix) != 0) continue;
      const auto heir = replaced_.find(value.substr(prefix.size()));
      if (heir != replaced_.end()) value = prefix + heir->second;
    }
  }
}

// ---- Forward --------------------------------------------------------------

// The chains that end in the activation: two if two norms are added.
std::vector<Forward> Fuser::ForwardsBefore(NodeDef* activation) {
  NodeDef* const before = graph_.Producer(*activation, 0);
  if (before == nullptr || TensorName::Parse(activation->input(0)).port != 0) {
    return {};
  }
  if (IsNorm(*before)) return {{before, nullptr, 0, activation}};
  std::vector<Forward> result;
  if (!IsAddition(*before)) return result;
  for (int input = 0; input < 2; ++input) {
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
         graph_.Readers(x->name()).size() == 1;
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

  // Who reads y of the norm, or the sum, reads its shape, which is that of x.
  MoveReaders(norm.name(), fused->name(), {{0, x}});
  if (forward.add != nullptr) {
    MoveReaders(forward.add->name(), fused->name(), {{0, x}});
  }
  graph_.SetInputs(fused, inputs);
  fused->set_op(node.op());
  fused->set_device(node.device());
  fused->mutable_attr()->swap(*node.mutable_attr());
  if (forward.add != nullptr) Replace(forward.add, *fused);
  Replace(forward.norm, *fused);
}

// What TensorFlow's remapper has fused already: the attrs are the same.
void Fuser::TakeRemapped(NodeDef* node) {
  const std::string activation = ActivationOf(*node);
  if (activation != "Relu" && activation != "Relu6") return;
  const std::string refusal = NodeRefusal(*node);
  fusions_.push_back({node->name(), /*is_backward=*/false, refusal});
  if (refusal.empty()) node->set_op(kFusedForward);
}

// ---- Backward -------------------------------------------------------------

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
  for (const IndexedGraph::Reader& reader : graph_.Readers(mask.name())) {
    if (!IsGradient(*reader.node) || reader.port != 0 ||
        reader.input != kGradYBackprop) {
      continue;
    }
    const bool matches = forward != nullptr && IsFusedNorm(*forward) &&
                         SameTensor(*forward, kX, *reader.node, kGradX);
    result.insert(matches ? result.begin() : result.end(), reader.node);
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
  for (const IndexedGraph::Reader& reader : graph_.Readers(mask.name())) {
    if (reader.port == TensorName::kControl) {
      return reader.node->name() + " has a control edge from " + mask.name();
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
// tensor of another size than theirs, so that the mask is from y. That is what
// the gradient has there, if it is known to be a placeholder, else
// reserve_space_2.
std::string Fuser::CoefficientsFor(const Backward& backward) {
  const NodeDef& gradient = *backward.gradient;
  if (const NodeDef* const forward = ForwardOf(backward)) {
    return TensorName{forward->name(), kForwardCoefficients}.ToInput();
  }
  const std::vector<std::string> inputs = DataInputs(gradient);
  if (inputs.size() > kGradInputs) {
    const NodeDef* const forward = graph_.Producer(gradient, kGradInputs);
    const bool is_placeholder =
        forward != nullptr &&
        TensorName::Parse(inputs[kGradInputs]).port == kForwardCoefficients &&
        (IsNorm(*forward) || SideInputsOf(*forward) == 1);
    if (is_placeholder) return inputs[kGradInputs];
  }
  return inputs[kGradInputs - 1];
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
  const bool has_other_readers = !graph_.Readers(mask->name()).empty();
  (*node.mutable_attr())["num_side_inputs"].set_i(has_other_readers);
  fused->mutable_attr()->swap(*node.mutable_attr());
  MoveReaders(mask->name(), fused->name(),
              {{0, TensorName{fused->name(), kSideInputBackprop}}});
  Replace(mask, *fused);
}

// ---- Gradients of additions -----------------------------------------------

// The gradient of an addition whose inputs have shapes that were not known in
// full when it was built is Reshape(Sum(gradient, axes), shape): the sum over
// the axes along which an input was broadcast. Where the shapes are equal after
// all, it is its own argument. Has the readers of such gradients read `mask`,
// if one of them is the gradient of a norm.
void Fuser::BypassUnbroadcasts(const NodeDef& mask) {
  std::vector<NodeDef*> unbroadcasts;
  bool leads_to_norm = false;
  for (const IndexedGraph::Reader& sum : graph_.Readers(mask.name())) {
    if (sum.node->op() != "Sum" || sum.input != 0) continue;
    for (const IndexedGraph::Reader& end : graph_.Readers(sum.node->name())) {
      if (!IsIdentityUnbroadcast(*end.node)) continue;
      unbroadcasts.push_back(end.node);
      for (const IndexedGraph::Reader& each :
           graph_.Readers(end.node->name())) {
        leads_to_norm |= IsGradient(*each.node);
      }
    }
  }
  if (!leads_to_norm) return;
  for (NodeDef* const unbroadcast : unbroadcasts) {
    MoveReaders(unbroadcast->name(), unbroadcast->name(),
                {{0, TensorName{mask.name(), 0}}});
    RemoveUnread(unbroadcast);
  }
}

bool Fuser::IsIdentityUnbroadcast(const NodeDef& reshape) {
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
  const auto same = [this](const NodeDef& a, const NodeDef& b) {
    return SameTensor(a, 0, b, 0) ||
           options_.same_shape(TensorName::Parse(a.input(0)),
                               TensorName::Parse(b.input(0)));
  };
  return same(*shapes[0], *shapes[1]) && same(*shapes[1], *shapes[2]);
}

// Removes a node of an unbroadcast that nobody reads, and what then is unread.
void Fuser::RemoveUnread(NodeDef* node) {
  static const std::set<std::string>* const kOps = new std::set<std::string>{
      "Reshape", "Sum", "BroadcastGradientArgs", "Shape"};
  if (node == nullptr || graph_.IsRemoved(*node) ||
      kOps->count(node->op()) == 0 ||
      options_.preserved.count(node->name()) != 0 ||
      !graph_.Readers(node->name()).empty()) {
    return;
  }
  const std::vector<std::string> inputs = DataInputs(*node);
  graph_.Remove(node);
  for (const std::string& input : inputs) {
    RemoveUnread(graph_.Find(TensorName::Parse(input).node));
  }
}

}  // namespace

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
