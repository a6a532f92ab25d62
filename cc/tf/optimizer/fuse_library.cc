// The fusion of a serialized GraphDef and of its functions, which Python calls,
// with the shapes that grappler infers.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cc/tf/optimizer/fusion_rules.h"
#include "cc/tf/optimizer/optimizer_c.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
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

bool IsSet(const google::protobuf::Map<std::string, AttrValue>& attrs,
           const char* name) {
  const auto found = attrs.find(name);
  return found != attrs.end() && found->second.b();
}

// The functions that XLA compiles, and those that they call: XLA has no use for
// fused ops, and not all of them have XLA kernels.
FunctionLibraryDefinition CompiledFunctions(
    const GraphDef& graph, const FunctionLibraryDefinition& library) {
  constexpr char kAttr[] = "_XlaMustCompile";
  GraphDef calls;
  const auto add = [&](const auto& nodes) {
    for (const NodeDef& node : nodes) {
      if (IsSet(node.attr(), kAttr)) *calls.add_node() = node;
    }
  };
  add(graph.node());
  for (const FunctionDef& function : graph.library().function()) {
    add(function.node_def());
    if (IsSet(function.attr(), kAttr)) {
      calls.add_node()->set_op(function.signature().name());
    }
  }
  return library.ReachableDefinitions(calls);
}

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

// Fuses in the graph and in the functions of its library but for those that XLA
// compiles; nodes that are named in `preserved` stay. A graph and functions in
// which nothing was fused are left as they are. A line of `report` for each
// place.
absl::Status FuseGraphAndLibrary(
    const std::unordered_set<std::string>& preserved, GraphDef* graph,
    std::string* report) {
  const auto add = [&](const std::string& function,
                       const std::vector<Fusion>& fusions) {
    for (const Fusion& fusion : fusions) {
      *report += function + "\t" + AsLine(fusion) + "\n";
    }
  };
  const FunctionLibraryDefinition library(tensorflow::OpRegistry::Global(),
                                          graph->library());
  GrapplerItem item;
  item.graph = *graph;
  FusionOptions options;
  options.preserved = preserved;
  options.same_shape = SameShapeIn(item);
  const std::vector<Fusion> fusions = FusePatterns(options, graph);
  if (!FusedAny(fusions)) *graph = item.graph;
  add("", fusions);
  if (!graph->has_library()) return absl::OkStatus();
  const FunctionLibraryDefinition compiled =
      CompiledFunctions(item.graph, library);
  for (FunctionDef& function : *graph->mutable_library()->mutable_function()) {
    const std::string name = function.signature().name();
    if (!HasBatchNorm(function) ||
        tensorflow::grappler::IsParametrized(function) ||
        compiled.Contains(name)) {
      continue;
    }
    std::vector<Fusion> found;
    TF_RETURN_IF_ERROR(FuseFunction(
        library, preserved, graph->versions().producer(), &function, &found));
    add(name, found);
  }
  return absl::OkStatus();
}

constexpr size_t kMaxBytes = std::numeric_limits<int32_t>::max();

char* Copy(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

std::unordered_set<std::string> Lines(const char* text) {
  std::unordered_set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

}  // namespace

SameShape SameShapeIn(const GrapplerItem& item) {
  const auto shapes = std::make_shared<InferredShapes>(item);
  return [shapes](const TensorName& a, const TensorName& b) {
    return shapes->Same(a, b);
  };
}

}  // namespace tf_bn_ops

int tfbn_fuse_graph(const void* graph, size_t graph_size, const char* preserved,
                    void** result, size_t* result_size, char** report) try {
  *result = nullptr;
  *result_size = 0;
  *report = nullptr;
  const auto failed = [report](const std::string& error) {
    *report = tf_bn_ops::Copy(error);
    return 1;
  };
  if (graph_size > tf_bn_ops::kMaxBytes) {
    return failed("it is larger than 2 GiB, the most that protobuf reads");
  }
  tensorflow::GraphDef graph_def;
  if (!graph_def.ParseFromArray(graph, static_cast<int>(graph_size))) {
    return failed("the GraphDef cannot be parsed");
  }
  std::string places;
  const absl::Status status = tf_bn_ops::FuseGraphAndLibrary(
      tf_bn_ops::Lines(preserved), &graph_def, &places);
  if (!status.ok()) return failed(std::string(status.message()));
  std::string serialized;
  if (graph_def.ByteSizeLong() > tf_bn_ops::kMaxBytes ||
      !graph_def.SerializeToString(&serialized)) {
    return failed(
        "fused, it is larger than 2 GiB, the most that protobuf writes");
  }
  *result = tf_bn_ops::Copy(serialized);
  *result_size = serialized.size();
  *report = tf_bn_ops::Copy(places);
  return *report != nullptr && *result != nullptr ? 0 : 1;
} catch (const std::bad_alloc&) {
  return 1;  // without a report
} catch (const std::exception& error) {
  *report = tf_bn_ops::Copy(error.what());
  return 1;
}

void tfbn_free(void* buffer) { std::free(buffer); }
