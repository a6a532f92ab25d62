// What only this library has: loading, its fourth op, C++ gradients, the block.
//   client load PATH          LoadOpLibrary(PATH), and the ops before it
//   client ops CASE...        BatchNormTrainingBackprop
//   client gradients CASE...  d outputs . gradN.pb / d inputs -> outputN.pb
//   client third_order CASE... the same once more, of their sum
//   client block

#include <cmath>
#include <cstring>
#include <set>

#include "support.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tf_bn_ops/batch_norm_grad_block.h"
#include "tf_bn_ops/ops.h"

namespace tf = tensorflow;
using tf::Output;
using tf::Scope;

void Expect(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "expected: %s\n", what);
  exit(3);
}
#define EXPECT(condition) Expect(condition, #condition)

tf::Tensor Filled(std::initializer_list<int64_t> shape, float value) {
  tf::Tensor tensor(tf::DT_FLOAT, tf::TensorShape(shape));
  tensor.flat<float>().setConstant(value);
  return tensor;
}

int Load(const char* path) {
  const tf::Tensor data = Filled({1, 2, 2, 1}, 1), one = Filled({1}, 1);
  Scope scope = Scope::NewRootScope();
  const tf_bn_ops::ops::FusedBatchNormGrad early(scope, data, data, one, one,
                                                 one);
  printf("%s\n", std::string(scope.status().message()).c_str());
  const absl::Status status = tf_bn_ops::LoadOpLibrary(path);
  printf("%d %s\n", static_cast<int>(status.code()),
         std::string(status.message()).c_str());
  if (!status.ok()) return 0;
  // Again, and from another path, does nothing.
  Check(tf_bn_ops::LoadOpLibrary(path));
  Check(tf_bn_ops::LoadOpLibrary("/nonexistent"));
  scope = Scope::NewRootScope();
  const tf_bn_ops::ops::FusedBatchNormGrad op(scope, data, data, one, one, one);
  Check(scope.status());
  EXPECT(RunGraph(scope, {op.offset_backprop})[0].flat<float>()(0) == 4);

  // The attributes own their text.
  auto* format = new std::string("NCHW");
  const auto attrs = tf_bn_ops::ops::FusedBatchNormGrad::DataFormat(*format);
  format->assign("gone");
  delete format;
  EXPECT(attrs.data_format_ == "NCHW");
  return 0;
}

// The op with inputs that are constants; its outputs that have gradients.
struct Built {
  std::vector<Output> inputs, outputs;
};

Built Build(const Scope& scope, const Case& c) {
  namespace bn = tf_bn_ops::ops;
  Built built;
  for (const tf::Tensor& tensor : c.tensors) {
    built.inputs.push_back(tf::ops::Const(scope, tensor));
  }
  const auto& in = built.inputs;
  const auto fused = [&](const auto& op) {
    built.outputs = {op.x_backprop, op.scale_backprop, op.offset_backprop};
  };
  const auto attrs = [&](auto attrs) {
    return attrs.Epsilon(c.epsilon)
        .DataFormat(c.data_format)
        .IsTraining(c.is_training != 0);
  };
  if (c.op == "FusedBatchNormGrad") {
    fused(bn::FusedBatchNormGrad(scope, in[0], in[1], in[2], in[3], in[4],
                                 attrs(bn::FusedBatchNormGrad::Attrs())));
  } else if (c.op == "FusedBatchNormGradV2") {
    fused(bn::FusedBatchNormGradV2(scope, in[0], in[1], in[2], in[3], in[4],
                                   attrs(bn::FusedBatchNormGradV2::Attrs())));
  } else if (c.op == "FusedBatchNormGradV3") {
    fused(bn::FusedBatchNormGradV3(scope, in[0], in[1], in[2], in[3], in[4],
                                   in[5],
                                   attrs(bn::FusedBatchNormGradV3::Attrs())));
  } else {
    const bn::BatchNormTrainingBackprop op(scope, in[0], in[1], in[2], in[3],
                                           in[4], in[5], c.epsilon);
    EXPECT(op.operation.num_outputs() == 3);
    built.outputs = {op.input_delta, op.gamma_delta, op.beta_delta};
  }
  Check(scope.status());
  return built;
}

void Ops(const Case& c) {
  const Scope scope = Scope::NewRootScope();
  const auto results = RunGraph(scope, Build(scope, c).outputs);
  for (size_t k = 0; k < results.size(); ++k) {
    WriteTensor(File(c.folder, "output", k), results[k]);
  }
}

void Gradients(const Case& c, bool third_order) {
  const Scope scope = Scope::NewRootScope();
  const Built built = Build(scope, c);
  std::vector<Output> outputs, grad_inputs;
  for (int i = 0; i < 3; ++i) {  // an output without a file gets no gradient
    const std::string path = File(c.folder, "grad", i);
    if (!tf::Env::Default()->FileExists(path).ok()) continue;
    outputs.push_back(built.outputs[i]);
    grad_inputs.push_back(tf::ops::Const(scope, ReadTensor(path)));
  }
  std::vector<Output> gradients;
  Check(tf::AddSymbolicGradients(scope, outputs, built.inputs, grad_inputs,
                                 &gradients));
  const bool ngraph = c.op == "BatchNormTrainingBackprop";
  const std::set<int> differentiable =
      ngraph ? std::set<int>{0, 1, 5} : std::set<int>{0, 1, 2};
  std::vector<Output> kept;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const bool has = gradients[i].node() != nullptr;
    EXPECT(has == (differentiable.count(i) > 0));
    if (has) kept.push_back(gradients[i]);
  }
  if (third_order) {
    // The gradient of the sum of all second-order gradients.
    std::vector<Output> inputs;
    for (int i : differentiable) inputs.push_back(built.inputs[i]);
    gradients.clear();
    Check(tf::AddSymbolicGradients(scope, kept, inputs, &gradients));
    kept = gradients;
  }
  const auto results = RunGraph(scope, kept);
  size_t k = 0;
  for (int i : differentiable) {
    EXPECT(results[k].shape() == c.tensors[i].shape());
    EXPECT(results[k].dtype() == c.tensors[i].dtype());
    WriteTensor(File(c.folder, "output", i), results[k++]);
  }
}

void Block() {
  using tf_bn_ops::BatchNormGradBlock;
  const Scope scope = Scope::NewRootScope();
  BatchNormGradBlock block(scope, "TfBnOps>FusedBatchNormGradV2",
                           "is_training_=false; epsilon=0;");
  Check(block.status());
  EXPECT(block.input_names().size() == 5 && block.output_names().size() == 5);
  EXPECT(block.Run().message() ==
         "the inputs y_backprop, x, scale, reserve_space_1 and "
         "reserve_space_2 of TfBnOps>FusedBatchNormGradV2 are not set");
  const tf::Tensor one = Filled({1}, 1), two = Filled({1}, 2);
  for (const char* name : {"scale", "reserve_space_1", "reserve_space_2"}) {
    Check(block.SetInput(name, one));
  }
  Check(block.SetInput("x", Filled({1, 2, 2, 1}, 3)));
  // A type of its own is refused together with x, and can be corrected.
  Check(block.SetInput("y_backprop", tf::Tensor(tf::DT_HALF, {1, 2, 2, 1})));
  EXPECT(block.Run().message() ==
         "the inputs y_backprop and x of TfBnOps>FusedBatchNormGradV2 must "
         "have one type, but are half and float");
  EXPECT(block.SetInput("x", tf::Tensor(tf::DT_INT32, {1})).message() ==
         "the input x of TfBnOps>FusedBatchNormGradV2 must be half, bfloat16 "
         "or float, but is int32");
  Check(block.SetInput("y_backprop", Filled({1, 2, 2, 1}, 5)));
  Check(block.Run());
  Check(block.SetInput("scale", two));
  Check(block.Run());
  const auto& results = block.result("x_backprop");
  EXPECT(results.size() == 2);
  EXPECT(results[0].flat<float>()(3) == 5 && results[1].flat<float>()(3) == 10);
  EXPECT(block.result("scale_backprop")[1].flat<float>()(0) == 5 * 2 * 4);
  EXPECT(block.result("no_such_output").empty());

  // Shapes that do not fit: the kernel's error, after which the block goes on.
  Check(block.SetInput("scale", Filled({3}, 1)));
  EXPECT(!block.Run().ok());
  Check(block.SetInput("scale", one));
  block.ClearResults();
  EXPECT(block.result("x_backprop").empty());

  // An output of the graph as a pin, and a tensor again.
  Check(block.SetInput("y_backprop",
                       tf::ops::Multiply(scope, tf::ops::Const(scope, two),
                                         Filled({1, 2, 2, 1}, 7))));
  Check(block.Run());
  EXPECT(block.result("x_backprop")[0].flat<float>()(0) == 14);
  Check(block.SetInput("y_backprop", Filled({2, 2, 2, 1}, 6)));
  Check(block.SetInput("x", Filled({2, 2, 2, 1}, 3)));
  Check(block.Run());
  EXPECT(block.result("x_backprop")[1].dim_size(0) == 2);
  EXPECT(block.SetInput("x", Output()).message() ==
         "the input x was given the output of no operation: look at the "
         "status of its scope");
  Check(scope.status());
}

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "load") return Load(argc > 2 ? argv[2] : "");
  Check(tf_bn_ops::LoadOpLibrary());
  if (command == "block") Block();
  for (int i = 2; i < argc; ++i) {
    if (command == "ops") Ops(Case(argv[i]));
    if (command == "gradients") Gradients(Case(argv[i]), false);
    if (command == "third_order") Gradients(Case(argv[i]), true);
  }
  return 0;
}
