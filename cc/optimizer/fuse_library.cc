// Runs the fusion on a GraphDef and on its functions, with the shapes that
// grappler infers.

#include "cc/optimizer/fuse_library.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"
#include "tensorflow/core/grappler/utils/functions.h"
#include "tensorflow/core/grappler/utils/symbolic_shapes.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::AttrValue;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::OpInfo;
using ::tensorflow::grappler::GraphProperties;
using ::tensorflow::grappler::GrapplerFunctionItem;
using ::tensorflow::grappler::GrapplerItem;

// Inferred shapes of one graph.
class InferredShapes {
 public:
  explicit InferredShapes(const GrapplerItem& item) : properties_(item) {}

  bool Same(const TensorName& a, const TensorName& b) {
    if (!inferred_.has_value()) {
      // What arguments declare is taken at its word: where it is wrong, the
      // fused op says so when it runs.
      inferred_ = properties_
                      .InferStatically(/*assume_valid_feeds=*/true,
                                       /*aggressive_shape_inference=*/false,
                                       /*include_tensor_values=*/false)
                      .ok();
    }
    const OpInfo::TensorProperties* const shape_a = Find(a);
    const OpInfo::TensorProperties* const shape_b = Find(b);
    return *inferred_ && shape_a != nullptr && shape_b != nullptr &&
           tensorflow::grappler::ShapesSymbolicallyEqual(*shape_a, *shape_b);
  }

 private:
  const OpInfo::TensorProperties* Find(const TensorName& tensor) const {
    if (!properties_.HasOutputProperties(tensor.node)) return nullptr;
    const auto& outputs = properties_.GetOutputProperties(tensor.node);
    const bool exists =
        tensor.port >= 0 && tensor.port < static_cast<int>(outputs.size());
    return exists ? &outputs[tensor.port] : nullptr;
  }

  GraphProperties properties_;
  std::optional<bool> inferred_;
};

// The functions that an attr names.
void AppendFunctionNames(const AttrValue& value,
                         std::vector<std::string>* names) {
  if (value.has_func()) names->push_back(value.func().name());
  for (const auto& function : value.list().func()) {
    names->push_back(function.name());
  }
}

bool IsSet(const google::protobuf::Map<std::string, AttrValue>& attrs,
           const char* name) {
  const auto found = attrs.find(name);
  return found != attrs.end() && found->second.b();
}

// The functions that XLA compiles, and those that they call: XLA has no use for
// fused ops, and not all of them have XLA kernels.
class CompiledFunctions {
 public:
  explicit CompiledFunctions(const GraphDef& graph) {
    for (const FunctionDef& function : graph.library().function()) {
      functions_.emplace(function.signature().name(), &function);
    }
    for (const NodeDef& node : graph.node()) AddIfCompiled(node);
    for (const FunctionDef& function : graph.library().function()) {
      if (IsSet(function.attr(), "_XlaMustCompile")) {
        Add(function.signature().name());
      }
      for (const NodeDef& node : function.node_def()) AddIfCompiled(node);
    }
  }

  bool Contain(const std::string& name) const {
    return names_.count(name) != 0;
  }

 private:
  void AddIfCompiled(const NodeDef& node) {
    if (IsSet(node.attr(), "_XlaMustCompile")) AddCalled(node);
  }

  void AddCalled(const NodeDef& node) {
    std::vector<std::string> called = {node.op()};
    for (const auto& [unused, value] : node.attr()) {
      AppendFunctionNames(value, &called);
    }
    for (const std::string& name : called) Add(name);
  }

  void Add(const std::string& name) {
    const auto found = functions_.find(name);
    if (found == functions_.end() || !names_.insert(name).second) return;
    for (const NodeDef& node : found->second->node_def()) AddCalled(node);
  }

  std::unordered_map<std::string, const FunctionDef*> functions_;
  std::unordered_set<std::string> names_;
};

bool FusedAny(const std::vector<Fusion>& fusions) {
  return std::any_of(fusions.begin(), fusions.end(), [](const Fusion& fusion) {
    return fusion.refusal.empty();
  });
}

// What has none need not be understood: its ops may be unknown here.
bool HasBatchNorm(const FunctionDef& function) {
  return std::any_of(
      function.node_def().begin(), function.node_def().end(),
      [](const NodeDef& node) { return IsBatchNormOp(node.op()); });
}

absl::Status FuseFunction(const FunctionLibraryDefinition& library,
                          const std::unordered_set<std::string>& preserved,
                          int producer, FunctionDef* function,
                          std::vector<Fusion>* fusions) {
  GrapplerFunctionItem item;
  TF_RETURN_IF_ERROR(tensorflow::grappler::MakeGrapplerFunctionItem(
      *function, library, producer, &item));
  FusionOptions options;
  options.dangling_is_dead = true;
  options.preserved = item.NodesToPreserve();
  options.preserved.insert(preserved.begin(), preserved.end());
  options.same_shape = SameShapeIn(item);
  GraphDef body = item.graph;
  *fusions = FusePatterns(options, &body);
  if (!FusedAny(*fusions)) return absl::OkStatus();
  item.SwapFunctionBody(std::move(body));
  FunctionDef fused;
  TF_RETURN_IF_ERROR(
      tensorflow::grappler::MakeFunctionDef(item, library, &fused));
  // Nothing of the function but its body changes.
  function->mutable_node_def()->Swap(fused.mutable_node_def());
  function->mutable_ret()->swap(*fused.mutable_ret());
  function->mutable_control_ret()->swap(*fused.mutable_control_ret());
  return absl::OkStatus();
}

}  // namespace

std::function<bool(const TensorName&, const TensorName&)> SameShapeIn(
    const GrapplerItem& item) {
  const auto shapes = std::make_shared<InferredShapes>(item);
  return [shapes](const TensorName& a, const TensorName& b) {
    return shapes->Same(a, b);
  };
}

absl::Status FuseGraphAndLibrary(
    const std::unordered_set<std::string>& preserved, GraphDef* graph,
    std::vector<LibraryFusion>* fusions) {
  const FunctionLibraryDefinition library(tensorflow::OpRegistry::Global(),
                                          graph->library());
  GrapplerItem item;
  item.graph = *graph;
  FusionOptions options;
  options.preserved = preserved;
  options.same_shape = SameShapeIn(item);
  for (const Fusion& fusion : FusePatterns(options, graph)) {
    fusions->push_back({"", fusion});
  }
  if (!graph->has_library()) return absl::OkStatus();
  const CompiledFunctions compiled(item.graph);
  for (FunctionDef& function : *graph->mutable_library()->mutable_function()) {
    const std::string name = function.signature().name();
    if (!HasBatchNorm(function) ||
        tensorflow::grappler::IsParametrized(function) ||
        compiled.Contain(name)) {
      continue;
    }
    std::vector<Fusion> found;
    TF_RETURN_IF_ERROR(FuseFunction(
        library, preserved, graph->versions().producer(), &function, &found));
    for (const Fusion& fusion : found) fusions->push_back({name, fusion});
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops
