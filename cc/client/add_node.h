// Adds nodes with ops of this library to a scope's graph: for the op classes.

#ifndef TF_BN_OPS_CC_CLIENT_ADD_NODE_H_
#define TF_BN_OPS_CC_CLIENT_ADD_NODE_H_

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_bn_ops {
namespace ops {

// Adds the node TfBnOps>`name`; `set_rest` gets its NodeBuilder for attributes
// and inputs that are lists. Returns nullptr, with the reason in
// scope.status(), if that fails.
template <typename SetRest>
tensorflow::Node* AddNode(const tensorflow::Scope& scope,
                          const std::string& name,
                          std::initializer_list<tensorflow::Input> inputs,
                          const SetRest& set_rest) {
  if (!scope.ok()) return nullptr;
  const std::string op = absl::StrCat("TfBnOps>", name);
  if (tensorflow::OpRegistry::Global()->LookUp(op) == nullptr) {
    scope.UpdateStatus(absl::NotFoundError(
        absl::StrCat("the op ", op,
                     " is not registered: call tf_bn_ops::LoadOpLibrary() "
                     "before building a graph that holds it")));
    return nullptr;
  }
  tensorflow::NodeBuilder builder(scope.GetUniqueNameForOp(name), op);
  for (const tensorflow::Input& input : inputs) {
    const auto node_out = tensorflow::ops::AsNodeOut(scope, input);
    if (!scope.ok()) return nullptr;
    builder.Input(node_out);
  }
  set_rest(builder);
  if (!scope.ok()) return nullptr;
  scope.UpdateBuilder(&builder);
  tensorflow::Node* node = nullptr;
  scope.UpdateStatus(builder.Finalize(scope.graph(), &node));
  if (!scope.ok()) return nullptr;
  scope.UpdateStatus(scope.DoShapeInference(node));
  return node;  // set even if shapes do not fit, as TensorFlow's classes are
}

// The members of `op` that are one tensor each, in the order of the OpDef;
// lists come behind them.
template <typename Op>
void SetMembers(tensorflow::Node* node,
                std::initializer_list<tensorflow::Output Op::*> outputs,
                Op* op) {
  if (node == nullptr) return;
  op->operation = tensorflow::Operation(node);
  int index = 0;
  for (tensorflow::Output Op::* output : outputs) {
    op->*output = tensorflow::Output(node, index++);
  }
}

}  // namespace ops
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CLIENT_ADD_NODE_H_
