// Builds a graph that normalizes two channels of two samples, and runs it.
// README.md has this program, the command that compiles it, and what it prints.

#include <iostream>

#include "tensorflow/core/public/session.h"
#include "tf_bn_ops/ops.h"

int main() {
  TF_CHECK_OK(tf_bn_ops::LoadOpLibrary());
  const auto scope = tensorflow::Scope::NewRootScope();
  const tf_bn_ops::ops::FusedBatchNormV3 norm(
      scope, {{{{1.f, 10.f}}}, {{{2.f, 40.f}}}}, {1.f, 1.f}, {0.f, 0.f},
      {0.f, 0.f}, {1.f, 1.f});
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession({}));
  TF_CHECK_OK(session->Create(scope.graph()->ToGraphDefDebug()));
  std::vector<tensorflow::Tensor> y;
  TF_CHECK_OK(session->Run({}, {norm.y.name()}, {}, &y));
  std::cout << y[0].SummarizeValue(4) << "\n";
}
