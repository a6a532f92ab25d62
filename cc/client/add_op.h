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
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace ops {

// In place of Attrs, of an op without attributes and of one whose epsilon is a
// tensor.
struct NoAttrs {
  template <typename F>
  void Visit(F&&) const {}
};
struct EpsilonTensor {
  double epsilon;
  template <typename F>
  void Visit(F&& f) const {
    f("epsilon", tensorflow::Tensor(epsilon));
  }
};

// Adds the node TfBnOps>`name` with `inputs` and, behind them, the tensors of
// `input_list` if there is one. Sets the members of the op class: `outputs`,
// which are one tensor each, and behind them the tensors of `output_list`. If
// that fails, scope.status() has the reason.
template <typename Attrs>
void AddOp(const Scope& scope, const std::string& name,
           std::initializer_list<Input> inputs, const InputList* input_list,
           const Attrs& attrs, Operation* operation,
           std::initializer_list<Output*> outputs,
           OutputList* output_list = nullptr) {
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
  for (const Input& input : inputs) {
    const auto node_out = tensorflow::ops::AsNodeOut(scope, input);
    if (!scope.ok()) return;
    builder.Input(node_out);
  }
  if (input_list != nullptr) {
    builder.Input(tensorflow::ops::AsNodeOutList(scope, *input_list));
    if (!scope.ok()) return;
  }
  attrs.Visit(
      [&](const char* attr, const auto& value) { builder.Attr(attr, value); });
  scope.UpdateBuilder(&builder);
  tensorflow::Node* node = nullptr;
  scope.UpdateStatus(builder.Finalize(scope.graph(), &node));
  if (!scope.ok()) return;
  scope.UpdateStatus(scope.DoShapeInference(node));
  // Also if shapes do not fit, as TensorFlow's classes do.
  *operation = Operation(node);
  int index = 0;
  for (Output* output : outputs) *output = Output(node, index++);
  for (; output_list != nullptr && index < node->num_outputs(); ++index) {
    output_list->push_back(Output(node, index));
  }
}

}  // namespace ops
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CLIENT_ADD_OP_H_
