// The C++ API as its users call it, all in one program, since TensorFlow's
// headers take the time to compile:
//   client load [PATH]        LoadOpLibrary(PATH), and the ops before it
//   client block              the class of the block
//   client run_blocks (FOLDER OP ATTRIBUTES PIN... --)...
//                             blocks on FOLDER/PIN.pb, to FOLDER/out/NAME.pb;
//                             a line for each: ok, or the error
//   client every_class FILE   writes a graph with every class of the table
//   client builtin|ours       the nodes of TensorFlow's classes, and of ours

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session.h"
#include "tf_bn_ops/batch_norm_grad_block.h"
#include "tf_bn_ops/ops.h"

namespace tf = tensorflow;
using tf::Output;
using tf::Scope;
using Outputs = std::vector<Output>;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "error: %s\n", status.ToString().c_str());
  exit(1);
}

void Expect(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "expected: %s\n", what);
  exit(3);
}
#define EXPECT(condition) Expect(condition, #condition)

tf::GraphDef GraphOf(const Scope& scope) {
  tf::GraphDef graph;
  Check(scope.ToGraphDef(&graph));
  return graph;
}

tf::Tensor Filled(std::initializer_list<int64_t> shape, float value) {
  tf::Tensor tensor(tf::DT_FLOAT, tf::TensorShape(shape));
  tensor.flat<float>().setConstant(value);
  return tensor;
}

Output Given(const Scope& scope, const char* name, tf::DataType type) {
  return tf::ops::Placeholder(scope.WithOpName(name), type);
}

// void EveryClass(const Scope&): an op of every class of the table, on what is
// Given (conftest.py).
#include "every_class.h"

namespace builtin {
namespace bn = tensorflow::ops;
#include "same_source.h"
}  // namespace builtin

namespace ours {
namespace bn = tf_bn_ops::ops;
#include "same_source.h"
}  // namespace ours

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
  const std::unique_ptr<tf::Session> session(
      tf::NewSession(tf::SessionOptions()));
  Check(session->Create(GraphOf(scope)));
  std::vector<tf::Tensor> results;
  Check(session->Run({}, {op.offset_backprop.name()}, {}, &results));
  EXPECT(results[0].flat<float>()(0) == 4);

  // The attributes own their text.
  auto* format = new std::string("NCHW");
  const auto attrs = tf_bn_ops::ops::FusedBatchNormGrad::DataFormat(*format);
  format->assign("gone");
  delete format;
  EXPECT(attrs.data_format_ == "NCHW");
  return 0;
}

// The side input is a pin that may stay unset.
void ForwardBlock() {
  using tf_bn_ops::BatchNormGradBlock;
  const Scope scope = Scope::NewRootScope();
  BatchNormGradBlock block(scope, "TfBnOps>FusedBatchNormEx",
                           "is_training_=false;epsilon_=0;"
                           "activation_mode_=Relu;bessel_correction_=true");
  Check(block.status());
  EXPECT(block.input_names().back() == "side_input");
  for (const char* name : {"scale", "offset", "variance"}) {
    Check(block.SetInput(name, Filled({1}, 1)));
  }
  Check(block.SetInput("mean", Filled({1}, 5)));
  Check(block.SetInput("x", Filled({1, 2, 2, 1}, 3)));
  Check(block.Run());
  Check(block.SetInput("side_input", tf::Tensor(tf::DT_HALF, {1, 2, 2, 1})));
  EXPECT(!block.Run().ok());  // Of another type than x.
  Check(block.SetInput("side_input", Filled({1, 2, 2, 1}, 4)));
  Check(block.Run());
  const auto& y = block.result("y");
  EXPECT(y.size() == 2);
  EXPECT(y[0].flat<float>()(3) == 0 && y[1].flat<float>()(3) == 3);
  EXPECT(block.result("batch_mean")[1].flat<float>()(0) == 5);
}

void SetVectors(tf_bn_ops::BatchNormGradBlock* block) {
  for (const char* name : {"scale", "reserve_space_1", "reserve_space_2"}) {
    Check(block->SetInput(name, Filled({1}, 1)));
  }
}

// Inputs that are missing, of a wrong type or shape, and corrected.
void RefusingBlock() {
  const Scope scope = Scope::NewRootScope();
  tf_bn_ops::BatchNormGradBlock block(scope, "TfBnOps>FusedBatchNormGradV2",
                                      "is_training_=false; epsilon=0;");
  Check(block.status());
  EXPECT(block.input_names().size() == 5 && block.output_names().size() == 5);
  SetVectors(&block);
  Check(block.SetInput("x", Filled({1, 2, 2, 1}, 3)));
  EXPECT(!block.Run().ok());  // y_backprop is not set.
  // Types that do not go together, or that no kernel takes, can be corrected.
  Check(block.SetInput("y_backprop", tf::Tensor(tf::DT_HALF, {1, 2, 2, 1})));
  EXPECT(absl::IsInvalidArgument(block.Run()));
  Check(block.SetInput("y_backprop", tf::Tensor(tf::DT_INT32, {1})));
  EXPECT(absl::IsInvalidArgument(block.Run()));
  Check(block.SetInput("y_backprop", Filled({1, 2, 2, 1}, 5)));
  Check(block.Run());
  // Shapes that do not fit: the kernel's error, after which the block goes on.
  Check(block.SetInput("scale", Filled({3}, 1)));
  EXPECT(!block.Run().ok());
  Check(block.SetInput("scale", Filled({1}, 1)));
  Check(block.Run());
  EXPECT(block.SetInput("x", Output()).message() ==
         "the input x was given the output of no operation: look at the "
         "status of its scope");
  Check(scope.status());
}

// Results of several runs, of tensors and of outputs of the graph.
void Block() {
  const Scope scope = Scope::NewRootScope();
  tf_bn_ops::BatchNormGradBlock block(scope, "TfBnOps>FusedBatchNormGradV2",
                                      "is_training_=false; epsilon=0;");
  SetVectors(&block);
  const tf::Tensor two = Filled({1}, 2);
  Check(block.SetInput("x", Filled({1, 2, 2, 1}, 3)));
  Check(block.SetInput("y_backprop", Filled({1, 2, 2, 1}, 5)));
  Check(block.Run());
  Check(block.SetInput("scale", two));
  Check(block.Run());
  const auto& results = block.result("x_backprop");
  EXPECT(results.size() == 2);
  EXPECT(results[0].flat<float>()(3) == 5 && results[1].flat<float>()(3) == 10);
  EXPECT(block.result("scale_backprop")[1].flat<float>()(0) == 5 * 2 * 4);
  EXPECT(block.result("no_such_output").empty());
  Check(block.SetInput("scale", Filled({1}, 1)));
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
  Check(scope.status());
}

// Tensors travel as TensorProto, which Python's TensorFlow reads and writes.
absl::Status RunBlock(const std::vector<std::string>& words) {
  const std::string& folder = words[0];
  tf_bn_ops::BatchNormGradBlock block(Scope::NewRootScope(), words[1],
                                      words[2]);
  TF_RETURN_IF_ERROR(block.status());
  for (size_t i = 3; i < words.size(); ++i) {
    tf::TensorProto proto;
    tf::Tensor tensor;
    TF_RETURN_IF_ERROR(tf::ReadBinaryProto(
        tf::Env::Default(), folder + "/" + words[i] + ".pb", &proto));
    EXPECT(tensor.FromProto(proto));
    TF_RETURN_IF_ERROR(block.SetInput(words[i], tensor));
  }
  TF_RETURN_IF_ERROR(block.Run());
  mkdir((folder + "/out").c_str(), 0755);
  for (const std::string& name : block.output_names()) {
    tf::TensorProto proto;
    block.result(name).back().AsProtoTensorContent(&proto);
    TF_RETURN_IF_ERROR(tf::WriteBinaryProto(
        tf::Env::Default(), folder + "/out/" + name + ".pb", proto));
  }
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const std::string command = argv[1];
  const std::vector<std::string> words(argv + 2, argv + argc);
  if (command == "load") return Load(words.empty() ? "" : words[0].c_str());
  if (command == "run_blocks") {
    std::vector<std::string> block;
    for (const std::string& word : words) {
      if (word != "--") {
        block.push_back(word);
        continue;
      }
      const absl::Status status = RunBlock(block);
      puts(status.ok() ? "ok" : std::string(status.message()).c_str());
      block.clear();
    }
    return 0;
  }
  Check(tf_bn_ops::LoadOpLibrary());
  if (command == "builtin") return builtin::Run();
  if (command == "ours") return ours::Run();
  if (command == "every_class") {
    const Scope scope = Scope::NewRootScope();
    EveryClass(scope);
    Check(scope.status());
    Check(tf::WriteBinaryProto(tf::Env::Default(), words[0], GraphOf(scope)));
  }
  if (command == "block") {
    RefusingBlock();
    Block();
    ForwardBlock();
  }
  return 0;
}
