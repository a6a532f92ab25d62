// The index of producers and consumers, kept up to date by each rewiring.

#include "cc/tf/optimizer/indexed_graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace tf_bn_ops {
namespace {

// For each vertex of a directed graph, whether it is on a cycle with others:
// Tarjan's strongly connected components, without recursion.
std::vector<bool> OnCycles(const std::vector<std::vector<int>>& successors) {
  struct State {
    int order = 0;  // of the first visit; 0: not visited
    int low = 0;    // the lowest order on the stack that is reached
    size_t next = 0;
    bool is_done = false;
  };
  std::vector<State> states(successors.size());
  std::vector<bool> on_cycles(successors.size());
  std::vector<int> path, stack;
  int visits = 0;
  for (size_t root = 0; root < successors.size(); ++root) {
    if (states[root].order == 0) path.push_back(static_cast<int>(root));
    while (!path.empty()) {
      const int vertex = path.back();
      State& state = states[vertex];
      if (state.order == 0) {
        state.order = state.low = ++visits;
        stack.push_back(vertex);
      }
      if (state.next < successors[vertex].size()) {
        const int successor = successors[vertex][state.next++];
        const State& other = states[successor];
        if (other.order == 0) {
          path.push_back(successor);
        } else if (!other.is_done) {
          state.low = std::min(state.low, other.order);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) {
        State& before = states[path.back()];
        before.low = std::min(before.low, state.low);
      }
      if (state.low != state.order) continue;
      const bool has_others = stack.back() != vertex;
      for (int each = -1; each != vertex; stack.pop_back()) {
        each = stack.back();
        states[each].is_done = true;
        on_cycles[each] = has_others;
      }
    }
  }
  return on_cycles;
}

}  // namespace

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

IndexedGraph::IndexedGraph(tensorflow::GraphDef* graph)
    : graph_(graph), removed_(graph->node_size()) {
  for (int i = 0; i < size(); ++i) {
    nodes_.emplace(node(i)->name(), i);
    for (int input = 0; input < node(i)->input_size(); ++input) {
      consumers_[TensorName::Parse(node(i)->input(input)).node].insert(
          {i, input});
    }
  }
}

NodeDef* IndexedGraph::Find(const std::string& name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : node(found->second);
}

NodeDef* IndexedGraph::Producer(const NodeDef& node, int input) const {
  if (input >= node.input_size()) return nullptr;
  const TensorName tensor = TensorName::Parse(node.input(input));
  return tensor.port == TensorName::kControl ? nullptr : Find(tensor.node);
}

const std::set<IndexedGraph::Edge>& IndexedGraph::Edges(
    const std::string& name) const {
  static const std::set<Edge>* const kNone = new std::set<Edge>;
  const auto found = consumers_.find(name);
  return found == consumers_.end() ? *kNone : found->second;
}

IndexedGraph::Consumer IndexedGraph::At(const Edge& edge) const {
  NodeDef* const reader = node(edge.first);
  return {reader, edge.second,
          TensorName::Parse(reader->input(edge.second)).port};
}

std::vector<IndexedGraph::Consumer> IndexedGraph::Consumers(
    const std::string& name) const {
  std::vector<Consumer> result;
  for (const Edge& edge : Edges(name)) result.push_back(At(edge));
  return result;
}

void IndexedGraph::SetInput(NodeDef* node, int input,
                            const TensorName& tensor) {
  const Edge edge = {IndexOf(*node), input};
  consumers_[TensorName::Parse(node->input(input)).node].erase(edge);
  consumers_[tensor.node].insert(edge);
  node->set_input(input, tensor.ToInput());
}

void IndexedGraph::SetInputs(NodeDef* node,
                             const std::vector<std::string>& inputs) {
  const int index = IndexOf(*node);
  for (int i = 0; i < node->input_size(); ++i) {
    consumers_[TensorName::Parse(node->input(i)).node].erase({index, i});
  }
  node->clear_input();
  for (const std::string& input : inputs) {
    consumers_[TensorName::Parse(input).node].insert(
        {index, node->input_size()});
    node->add_input(input);
  }
}

void IndexedGraph::Remove(NodeDef* node) {
  SetInputs(node, {});
  const auto found = nodes_.find(node->name());
  removed_[found->second] = true;
  nodes_.erase(found);
}

std::vector<bool> IndexedGraph::WouldBeOnCycles(
    const std::vector<std::vector<NodeDef*>>& chains) const {
  const int num_chains = static_cast<int>(chains.size());
  std::vector<int> vertex_of(size());
  for (int i = 0; i < size(); ++i) vertex_of[i] = num_chains + i;
  for (int chain = 0; chain < num_chains; ++chain) {
    for (const NodeDef* const each : chains[chain]) {
      vertex_of[IndexOf(*each)] = chain;
    }
  }
  std::vector<std::vector<int>> successors(num_chains + size());
  std::vector<size_t> inner_edges(num_chains);
  for (const auto& [name, index] : nodes_) {
    const std::string& op = node(index)->op();
    if (op == "NextIteration" || op == "RefNextIteration") continue;
    const int from = vertex_of[index];
    for (const Edge& edge : Edges(name)) {
      const int to = vertex_of[edge.first];
      if (from != to) {
        successors[from].push_back(to);
      } else if (from < num_chains) {
        ++inner_edges[from];
      }
    }
  }
  std::vector<bool> result = OnCycles(successors);
  result.resize(num_chains);
  for (int i = 0; i < num_chains; ++i) {
    if (inner_edges[i] >= chains[i].size()) result[i] = true;
  }
  return result;
}

void IndexedGraph::Compact() {
  auto* const nodes = graph_->mutable_node();
  int kept = 0;
  for (int i = 0; i < nodes->size(); ++i) {
    if (removed_[i]) continue;
    if (i != kept) nodes->SwapElements(i, kept);
    ++kept;
  }
  nodes->DeleteSubrange(kept, nodes->size() - kept);
}

}  // namespace tf_bn_ops
