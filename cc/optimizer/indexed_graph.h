// A GraphDef with an index of the producer and the consumers of each tensor,
// kept up to date while nodes are rewired and removed.

#ifndef TF_BN_OPS_CC_OPTIMIZER_INDEXED_GRAPH_H_
#define TF_BN_OPS_CC_OPTIMIZER_INDEXED_GRAPH_H_

#include <string>
#include <unordered_map>
#include <unordered_set>
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
  // for.
  struct Consumer {
    tensorflow::NodeDef* node;
    int input;
    int port;
  };

  // `graph` must outlive this object, and be changed through it alone.
  explicit IndexedGraph(tensorflow::GraphDef* graph);

  int size() const { return graph_->node_size(); }
  tensorflow::NodeDef* node(int i) { return graph_->mutable_node(i); }

  // nullptr if there is no such node (any more).
  tensorflow::NodeDef* Find(const std::string& name);
  bool IsRemoved(const tensorflow::NodeDef& node) const {
    return removed_.count(&node) != 0;
  }

  // The node that computes data input `input`; nullptr if there is none.
  tensorflow::NodeDef* Producer(const tensorflow::NodeDef& node, int input);

  // The consumers of the node's outputs, in no particular order of nodes;
  // control edges have the port kControl.
  std::vector<Consumer> Consumers(const std::string& name) const;

  void SetInput(tensorflow::NodeDef* node, int input, const TensorName& tensor);
  // Replaces all inputs; data inputs come first.
  void SetInputs(tensorflow::NodeDef* node,
                 const std::vector<std::string>& inputs);
  void Remove(tensorflow::NodeDef* node);

  // Whether one of the tensors or control edges is computed, directly or not,
  // from an output of the node. Back edges of loops do not count.
  bool DependsOn(const std::vector<std::string>& inputs,
                 const std::string& node);

  // Deletes the removed nodes from the GraphDef. The object is invalid
  // afterwards.
  void Compact();

 private:
  struct Edge {
    tensorflow::NodeDef* node;
    int input;
  };

  void AddEdge(tensorflow::NodeDef* node, int input);
  void RemoveEdges(const tensorflow::NodeDef* node, const std::string& from);

  tensorflow::GraphDef* graph_;
  std::unordered_map<std::string, tensorflow::NodeDef*> nodes_;
  std::unordered_map<std::string, std::vector<Edge>> consumers_;
  std::unordered_set<const tensorflow::NodeDef*> removed_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPTIMIZER_INDEXED_GRAPH_H_
