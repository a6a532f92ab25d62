// The index of producers and consumers, kept up to date by each rewiring.

#include "cc/optimizer/indexed_graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace tf_bn_ops {

using ::tensorflow::NodeDef;

TensorName TensorName::Parse(const std::string& input) {
  if (!input.empty() && input[0] == '^') return {input.substr(1), kControl};
  const size_t colon = input.rfind(':');
  if (colon == std::string::npos) return {input, 0};
  return {input.substr(0, colon), std::atoi(input.c_str() + colon + 1)};
}

std::string TensorName::ToInput() const {
  if (port == kControl) return "^" + node;
  return port == 0 ? node : node + ":" + std::to_string(port);
}

IndexedGraph::IndexedGraph(tensorflow::GraphDef* graph) : graph_(graph) {
  for (int i = 0; i < size(); ++i) {
    nodes_.emplace(node(i)->name(), node(i));
    for (int input = 0; input < node(i)->input_size(); ++input) {
      AddEdge(node(i), input);
    }
  }
}

NodeDef* IndexedGraph::Find(const std::string& name) {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : found->second;
}

NodeDef* IndexedGraph::Producer(const NodeDef& node, int input) {
  if (input >= node.input_size()) return nullptr;
  const TensorName tensor = TensorName::Parse(node.input(input));
  return tensor.port == TensorName::kControl ? nullptr : Find(tensor.node);
}

std::vector<IndexedGraph::Consumer> IndexedGraph::Consumers(
    const std::string& name) const {
  std::vector<Consumer> result;
  const auto found = consumers_.find(name);
  if (found == consumers_.end()) return result;
  for (const Edge& edge : found->second) {
    result.push_back({edge.node, edge.input,
                      TensorName::Parse(edge.node->input(edge.input)).port});
  }
  return result;
}

void IndexedGraph::AddEdge(NodeDef* node, int input) {
  consumers_[TensorName::Parse(node->input(input)).node].push_back(
      {node, input});
}

void IndexedGraph::RemoveEdges(const NodeDef* node, const std::string& from) {
  std::vector<Edge>& edges = consumers_[from];
  edges.erase(
      std::remove_if(edges.begin(), edges.end(),
                     [node](const Edge& edge) { return edge.node == node; }),
      edges.end());
}

void IndexedGraph::SetInput(NodeDef* node, int input,
                            const TensorName& tensor) {
  std::vector<std::string> inputs(node->input().begin(), node->input().end());
  inputs[input] = tensor.ToInput();
  SetInputs(node, inputs);
}

void IndexedGraph::SetInputs(NodeDef* node,
                             const std::vector<std::string>& inputs) {
  for (const std::string& input : node->input()) {
    RemoveEdges(node, TensorName::Parse(input).node);
  }
  node->clear_input();
  for (size_t i = 0; i < inputs.size(); ++i) {
    node->add_input(inputs[i]);
    AddEdge(node, static_cast<int>(i));
  }
}

void IndexedGraph::Remove(NodeDef* node) {
  SetInputs(node, {});
  nodes_.erase(node->name());
  removed_.insert(node);
}

bool IndexedGraph::DependsOn(const std::vector<std::string>& inputs,
                             const std::string& node) {
  std::unordered_set<std::string> seen;
  std::vector<std::string> stack;
  const auto visit = [&](const std::string& input) {
    const std::string name = TensorName::Parse(input).node;
    if (seen.insert(name).second) stack.push_back(name);
  };
  for (const std::string& input : inputs) visit(input);
  while (!stack.empty()) {
    const std::string name = stack.back();
    stack.pop_back();
    if (name == node) return true;
    const NodeDef* const found = Find(name);
    const bool is_back_edge =
        found != nullptr &&
        (found->op() == "NextIteration" || found->op() == "RefNextIteration");
    if (found == nullptr || is_back_edge) continue;
    for (const std::string& input : found->input()) visit(input);
  }
  return false;
}

void IndexedGraph::Compact() {
  if (removed_.empty()) return;
  auto* const nodes = graph_->mutable_node();
  int kept = 0;
  for (int i = 0; i < nodes->size(); ++i) {
    if (removed_.count(&nodes->Get(i)) != 0) continue;
    if (i != kept) nodes->SwapElements(i, kept);
    ++kept;
  }
  nodes->DeleteSubrange(kept, nodes->size() - kept);
}

}  // namespace tf_bn_ops
