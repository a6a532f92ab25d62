// Builds a graph that holds TensorFlow's FusedBatchNormGradV3 and this
// library's, runs both on the same random input, and prints what they compute
// and the largest difference. `make examples` builds and runs it; docs/cpp.md
// has the commands that compile it against an installed package.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/standard_ops.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tf_bn_ops/ops.h"

namespace tf = tensorflow;
namespace ops = tensorflow::ops;

namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "error: %s\n", status.ToString().c_str());
  exit(1);
}

// Mean and variance of each channel, which the forward op returns.
struct Statistics {
  tf::Output mean, variance;
};

Statistics Moments(const tf::Scope& scope, const tf::Output& x) {
  const auto dimensions = ops::Const(scope, {0, 1, 2});
  const auto mean = ops::Mean(scope, x, dimensions);
  const auto variance =
      ops::Mean(scope, ops::SquaredDifference(scope, x, mean), dimensions);
  return {mean, variance};
}

void Print(const char* name, const tf::Tensor& builtin,
           const tf::Tensor& ours) {
  const auto b = builtin.flat<float>();
  const auto o = ours.flat<float>();
  double difference = 0;
  for (int64_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::fabs(double{b(i)} - double{o(i)}));
  }
  printf("%-16s %-14s builtin:", name, builtin.shape().DebugString().c_str());
  for (int64_t i = 0; i < std::min<int64_t>(4, b.size()); ++i) {
    printf(" %11.8f", b(i));
  }
  printf("\n%31s tf_bn_ops:", "");
  for (int64_t i = 0; i < std::min<int64_t>(4, o.size()); ++i) {
    printf(" %11.8f", o(i));
  }
  printf("\n%31s largest difference: %.3g\n", "", difference);
}

}  // namespace

int main() {
  Check(tf_bn_ops::LoadOpLibrary());

  const tf::Scope scope = tf::Scope::NewRootScope();
  const auto random = [&scope](std::initializer_list<int> shape, int seed) {
    return ops::RandomNormal(scope, ops::Const(scope, shape), tf::DT_FLOAT,
                             ops::RandomNormal::Seed(seed).Seed2(1));
  };
  const auto x = random({8, 16, 16, 32}, 1);
  const auto y_backprop = random({8, 16, 16, 32}, 2);
  const auto scale = random({32}, 3);
  const Statistics statistics = Moments(scope, x);
  const auto reserve_space_3 = ops::Const(scope, tf::Tensor(tf::DT_FLOAT, {0}));

  // The same lines for both, but for the namespace.
  using Builtin = tensorflow::ops::FusedBatchNormGradV3;
  using Ours = tf_bn_ops::ops::FusedBatchNormGradV3;
  const Builtin builtin(scope.WithOpName("builtin"), y_backprop, x, scale,
                        statistics.mean, statistics.variance, reserve_space_3,
                        Builtin::Epsilon(1e-3f).IsTraining(true));
  const Ours ours(scope.WithOpName("ours"), y_backprop, x, scale,
                  statistics.mean, statistics.variance, reserve_space_3,
                  Ours::Epsilon(1e-3f).IsTraining(true));
  Check(scope.status());

  tf::GraphDef graph;
  Check(scope.ToGraphDef(&graph));
  const std::unique_ptr<tf::Session> session(
      tf::NewSession(tf::SessionOptions()));
  Check(session->Create(graph));
  std::vector<tf::Tensor> results;
  Check(session->Run({},
                     {builtin.x_backprop.name(), builtin.scale_backprop.name(),
                      builtin.offset_backprop.name(), ours.x_backprop.name(),
                      ours.scale_backprop.name(), ours.offset_backprop.name()},
                     {}, &results));
  Print("x_backprop", results[0], results[3]);
  Print("scale_backprop", results[1], results[4]);
  Print("offset_backprop", results[2], results[5]);
  Check(session->Close());
  return 0;
}
