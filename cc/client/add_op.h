// Adds nodes with ops of this library to a scope's graph: for the op classes.

#ifndef TF_BN_OPS_CC_CLIENT_ADD_OP_H_
#define TF_BN_OPS_CC_CLIENT_ADD_OP_H_

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
// and inputs that are lists. Sets the members of the op class: `outputs`, which
// are one tensor each, and behind them the tensors of `list`. If that fails,
// scope.status() has the reason.
template <typename SetRest>
void AddOp(const tensorflow::Scope& scope, const std::string& name,
           std::initializer_list<tensorflow::Input> inputs,
           const SetRest& set_rest, tensorflow::Operation* operation,
           std::initializer_list<tensorflow::Output*> outputs,
           tensorflow::OutputList* list = nullptr) {
  if (!scope.ok()) return;
  const std::string op = absl::StrCat("TfBnOps>", name);
  if (tensorflow::OpRegistry::Global()->LookUp(op) == nullptr) {
    scope.UpdateStatus(absl::NotFoundError(
        absl::StrCat("the op ", op,
                     " is not registered: call tf_bn_ops::LoadOpLibrary() "
                     "before building a graph that holds it")));
    return;
  }
  tensorflow::NodeBuilder builder(scope.GetUniqueNameForOp(name), op);
  for (const tensorflow::Input& input : inputs) {
    const auto node_out = tensorflow::ops::AsNodeOut(scope, input);
    if (!scope.ok()) return;
    builder.Input(node_out);
  }
  set_rest(builder);
  if (!scope.ok()) return;
  scope.UpdateBuilder(&builder);
  tensorflow::Node* node = nullptr;
  scope.UpdateStatus(builder.Finalize(scope.graph(), &node));
  if (!scope.ok()) return;
  scope.UpdateStatus(scope.DoShapeInference(node));
  // Also if shapes do not fit, as TensorFlow's classes do.
  *operation = tensorflow::Operation(node);
  int index = 0;
  for (tensorflow::Output* output : outputs) {
    *output = tensorflow::Output(node, index++);
  }
  for (; list != nullptr && index < node->num_outputs(); ++index) {
    list->push_back(tensorflow::Output(node, index));
  }
}

}  // namespace ops
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CLIENT_ADD_OP_H_
