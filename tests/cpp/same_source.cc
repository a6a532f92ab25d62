// Compiled twice, with NAMESPACE replaced by tensorflow and by tf_bn_ops: what
// compiles with the one must compile, and mean the same, with the other.
//   same_source CASE_FOLDER...

#include <initializer_list>
#include <type_traits>

#include "support.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tf_bn_ops/ops.h"

namespace bn = NAMESPACE::ops;
using tensorflow::Input;
using tensorflow::Output;
using tensorflow::Scope;

// Distinct types, as are TensorFlow's; and names that `struct` may precede.
static_assert(!std::is_same_v<bn::FusedBatchNormGrad::Attrs,
                              bn::FusedBatchNormGradV2::Attrs>);
static_assert(
    !std::is_same_v<bn::FusedBatchNorm::Attrs, bn::FusedBatchNormV2::Attrs>);
int Overload(const struct bn::FusedBatchNormGrad::Attrs&) { return 1; }
int Overload(const struct bn::FusedBatchNormGradV3::Attrs&) { return 3; }
int Overload(const struct bn::FusedBatchNormV3::Attrs&) { return 4; }

template <typename Op>
typename Op::Attrs Attributes(const Case& c) {
  typename Op::Attrs attrs = Op::Epsilon(static_cast<float>(c.epsilon));
  attrs = attrs.DataFormat(c.data_format).IsTraining(c.is_training != 0);
  // The fields are public, and all setters start from the defaults.
  if (attrs.data_format_ != c.data_format) exit(3);
  if (Op::DataFormat("NCHW").epsilon_ != 0.0001f) exit(3);
  if (Op::IsTraining(false).data_format_ != "NHWC") exit(3);
  if (!Op::Epsilon(1).is_training_) exit(3);
  return attrs;
}

template <typename Op>
std::vector<Output> OutputsOf(const Op& op) {
  const tensorflow::Operation& operation = op.operation;
  if (operation.num_outputs() != 5) exit(3);
  std::vector<Output> outputs = {op.x_backprop, op.scale_backprop,
                                 op.offset_backprop};
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!(outputs[i] == operation.output(i))) exit(3);
  }
  return outputs;
}

template <typename Op>
std::vector<Output> Five(const Scope& scope, const Case& c) {
  const auto& t = c.tensors;
  const Op op = c.has_attrs
                    ? Op(scope, t[0], t[1], t[2], t[3], t[4], Attributes<Op>(c))
                    : Op(scope, t[0], t[1], t[2], t[3], t[4]);
  std::vector<Output> outputs = OutputsOf(op);
  outputs.push_back(op.reserve_space_3);
  outputs.push_back(op.reserve_space_4);
  return outputs;
}

std::vector<Output> Six(const Scope& scope, const Case& c) {
  using Op = bn::FusedBatchNormGradV3;
  const auto& t = c.tensors;
  const Op op = c.has_attrs ? Op(scope, t[0], t[1], t[2], t[3], t[4], t[5],
                                 Attributes<Op>(c))
                            : Op(scope, t[0], t[1], t[2], t[3], t[4], t[5]);
  std::vector<Output> outputs = OutputsOf(op);
  outputs.push_back(op.reserve_space_4);
  outputs.push_back(op.reserve_space_5);
  return outputs;
}

template <typename Op>
typename Op::Attrs ForwardAttributes(const Case& c) {
  typename Op::Attrs attrs = Op::ExponentialAvgFactor(c.exponential_avg_factor);
  attrs = attrs.Epsilon(static_cast<float>(c.epsilon))
              .DataFormat(c.data_format)
              .IsTraining(c.is_training != 0);
  if (attrs.exponential_avg_factor_ != c.exponential_avg_factor) exit(3);
  if (Op::DataFormat("NCHW").exponential_avg_factor_ != 1) exit(3);
  if (Op::IsTraining(false).epsilon_ != 0.0001f) exit(3);
  if (Op::Epsilon(1).data_format_ != "NHWC") exit(3);
  if (!Op::ExponentialAvgFactor(0).is_training_) exit(3);
  return attrs;
}

// V3's output that the others lack.
template <typename Op>
void AddLast(const Op&, std::vector<Output>*) {}
void AddLast(const bn::FusedBatchNormV3& op, std::vector<Output>* outputs) {
  outputs->push_back(op.reserve_space_3);
}

template <typename Op>
std::vector<Output> Forward(const Scope& scope, const Case& c) {
  const auto& t = c.tensors;
  const Op op = c.has_attrs ? Op(scope, t[0], t[1], t[2], t[3], t[4],
                                 ForwardAttributes<Op>(c))
                            : Op(scope, t[0], t[1], t[2], t[3], t[4]);
  std::vector<Output> outputs = {op.y, op.batch_mean, op.batch_variance,
                                 op.reserve_space_1, op.reserve_space_2};
  AddLast(op, &outputs);
  const tensorflow::Operation& operation = op.operation;
  if (operation.num_outputs() != static_cast<int>(outputs.size())) exit(3);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!(outputs[i] == operation.output(i))) exit(3);
  }
  return outputs;
}

std::vector<Output> OutputsOf(const Scope& scope, const Case& c) {
  if (c.op == "FusedBatchNorm") return Forward<bn::FusedBatchNorm>(scope, c);
  if (c.op == "FusedBatchNormV2") {
    return Forward<bn::FusedBatchNormV2>(scope, c);
  }
  if (c.op == "FusedBatchNormV3") {
    return Forward<bn::FusedBatchNormV3>(scope, c);
  }
  if (c.op == "FusedBatchNormGrad") {
    return Five<bn::FusedBatchNormGrad>(scope, c);
  }
  if (c.op == "FusedBatchNormGradV2") {
    return Five<bn::FusedBatchNormGradV2>(scope, c);
  }
  return Six(scope, c);
}

// What goes wrong must end in the status of the scope, in the same way.
void CheckErrors() {
  const tensorflow::Tensor data(tensorflow::DT_FLOAT, {1, 2, 2, 3});
  const tensorflow::Tensor doubles(tensorflow::DT_DOUBLE, {1, 2, 2, 3});
  const tensorflow::Tensor vector(tensorflow::DT_FLOAT, {3});
  const tensorflow::Tensor longer(tensorflow::DT_FLOAT, {4});
  struct {
    const tensorflow::Tensor &data, &vector;
    const char* format;
  } const wrong[] = {{doubles, vector, "NHWC"},  // a type that is not allowed
                     {data, longer, "NHWC"},     // shapes that do not fit
                     {data, vector, "NDHWC"},    // a format that V2 lacks
                     {data, vector, "nonsense"},
                     {vector, vector, "NHWC"}};  // a rank that is too low
  for (const auto& w : wrong) {
    const Scope scope = Scope::NewRootScope();
    const bn::FusedBatchNormGradV2 op(
        scope, w.data, w.data, w.vector, w.vector, w.vector,
        bn::FusedBatchNormGradV2::DataFormat(w.format));
    printf("%d %d\n", static_cast<int>(scope.status().code()),
           op.operation.node() == nullptr);
    const Scope forward = Scope::NewRootScope();
    const bn::FusedBatchNormV2 norm(forward, w.data, w.vector, w.vector,
                                    w.vector, w.vector,
                                    bn::FusedBatchNormV2::DataFormat(w.format));
    printf("%d %d\n", static_cast<int>(forward.status().code()),
           norm.operation.node() == nullptr);
    // A scope with an error takes no more nodes.
    const bn::FusedBatchNormGrad after(scope, data, data, vector, vector,
                                       vector);
    if (after.x_backprop.node() != nullptr) exit(3);
  }
}

int main(int argc, char** argv) {
  Check(tf_bn_ops::LoadOpLibrary());
  CheckErrors();
  if (Overload(bn::FusedBatchNormGradV3::Attrs()) != 3) return 3;
  if (Overload(bn::FusedBatchNormV3::Attrs()) != 4) return 3;
  for (int i = 1; i < argc; ++i) {
    const Case c(argv[i]);
    const Scope scope = Scope::NewRootScope().WithOpName("node");
    const std::vector<Output> outputs = OutputsOf(scope, c);
    Check(scope.status());
    if (outputs[0].node()->name() != "node") return 3;
    const auto results = RunGraph(scope, outputs, /*optimize=*/false);
    for (size_t k = 0; k < results.size(); ++k) {
      WriteTensor(File(c.folder, "output", k), results[k]);
    }
  }
  return 0;
}
