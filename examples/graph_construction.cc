// Builds a graph that normalizes two channels, runs it and prints y.
// docs/cpp.md has the command that compiles it.

#include <iostream>
#include <memory>
#include <vector>

#include "tensorflow/cc/ops/standard_ops.h"
#include "tensorflow/core/public/session.h"
#include "tf_bn_ops/ops.h"

int main() {
  TF_CHECK_OK(tf_bn_ops::LoadOpLibrary());
  const auto scope = tensorflow::Scope::NewRootScope();
  const auto x =
      tensorflow::ops::Const(scope, {1.f, 10.f, 2.f, 40.f}, {2, 1, 1, 2});
  const auto one = tensorflow::ops::Const(scope, {1.f, 1.f});
  const auto zero = tensorflow::ops::Const(scope, {0.f, 0.f});
  const tf_bn_ops::ops::FusedBatchNormV3 norm(scope, x, one, zero, zero, zero);

  tensorflow::GraphDef graph;
  TF_CHECK_OK(scope.ToGraphDef(&graph));
  const std::unique_ptr<tensorflow::Session> session(
      tensorflow::NewSession(tensorflow::SessionOptions()));
  TF_CHECK_OK(session->Create(graph));
  std::vector<tensorflow::Tensor> results;
  TF_CHECK_OK(session->Run({}, {norm.y.name()}, {}, &results));
  std::cout << results[0].SummarizeValue(4) << "\n";
}
