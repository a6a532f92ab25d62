// A GraphDef with an index of the producer and the consumers of each tensor,
// kept up to date while nodes are rewired and removed. Each change costs the
// logarithm of the consumers, whatever the size of the graph.

#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_bn_ops {

// An input of a node: the tensor `node:port`, or a control edge.
struct TensorName {
  static constexpr int kControl = -1;

  std::string node;
  int port = 0;

  static TensorName Parse(const std::string& input);
  std::string ToInput() const;
  bool operator==(const TensorName& other) const {
    return node == other.node && port == other.port;
  }
};

class IndexedGraph {
 public:
  // Input number `input` of `node`, which reads `port` of what it is listed
  // for; kControl of a control edge.
  struct Consumer {
    tensorflow::NodeDef* node;
    int input;
    int port;
  };

  // `graph` must outlive this object, and be changed through it alone.
  explicit IndexedGraph(tensorflow::GraphDef* graph);

  int size() const { return graph_->node_size(); }
  tensorflow::NodeDef* node(int i) const { return graph_->mutable_node(i); }

  // nullptr if there is no such node (any more).
  tensorflow::NodeDef* Find(const std::string& name) const;

  // The node that computes data input `input`; nullptr if there is none.
  tensorflow::NodeDef* Producer(const tensorflow::NodeDef& node,
                                int input) const;

  // The consumers of the node's outputs, in the order of nodes and inputs.
  std::vector<Consumer> Consumers(const std::string& name) const;
  int NumConsumers(const std::string& name) const {
    return static_cast<int>(Edges(name).size());
  }

  void SetInput(tensorflow::NodeDef* node, int input, const TensorName& tensor);
  // Replaces all inputs; data inputs come first.
  void SetInputs(tensorflow::NodeDef* node,
                 const std::vector<std::string>& inputs);
  void Remove(tensorflow::NodeDef* node);

  // For each chain of nodes, each of which reads the one before once: whether
  // it would be on a cycle if all chains were nodes. Back edges of loops do not
  // count. A node must be in one chain at most. Takes time linear in the graph.
  std::vector<bool> WouldBeOnCycles(
      const std::vector<std::vector<tensorflow::NodeDef*>>& chains) const;

  // Deletes the removed nodes from the GraphDef. The object is invalid
  // afterwards.
  void Compact();

 private:
  using Edge = std::pair<int, int>;  // node, input

  const std::set<Edge>& Edges(const std::string& name) const;
  Consumer At(const Edge& edge) const;
  int IndexOf(const tensorflow::NodeDef& node) const {
    return nodes_.at(node.name());
  }

  tensorflow::GraphDef* graph_;
  std::unordered_map<std::string, int> nodes_;
  std::unordered_map<std::string, std::set<Edge>> consumers_;
  std::vector<bool> removed_;
};

}  // namespace tf_bn_ops
