// Adds nodes with ops of this library to a scope's graph: for the op classes.

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
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace ops {
namespace internal {

Operation AddNode(const Scope& scope, const std::string& name,
                  std::initializer_list<Input> inputs, const InputList* list,
                  const AttrValues& attrs) {
  if (!scope.ok()) return Operation();
  const std::string op = absl::StrCat("TfBnOps>", name);
  if (tensorflow::OpRegistry::Global()->LookUp(op) == nullptr) {
    scope.UpdateStatus(absl::NotFoundError(
        absl::StrCat("the op ", op,
                     " is not registered: call tf_bn_ops::LoadOpLibrary() "
                     "before building a graph that holds it")));
    return Operation();
  }
  tensorflow::NodeBuilder builder(scope.GetUniqueNameForOp(name), op);
  for (const Input& input : inputs) {
    const auto node_out = tensorflow::ops::AsNodeOut(scope, input);
    if (!scope.ok()) return Operation();
    builder.Input(node_out);
  }
  if (list != nullptr) {
    builder.Input(tensorflow::ops::AsNodeOutList(scope, *list));
    if (!scope.ok()) return Operation();
  }
  for (const auto& [attr, value] : attrs) builder.Attr(attr, value);
  scope.UpdateBuilder(&builder);
  tensorflow::Node* node = nullptr;
  scope.UpdateStatus(builder.Finalize(scope.graph(), &node));
  if (!scope.ok()) return Operation();
  scope.UpdateStatus(scope.DoShapeInference(node));
  // Also if shapes do not fit, as TensorFlow's classes do.
  return Operation(node);
}

}  // namespace internal
}  // namespace ops
}  // namespace tf_bn_ops
