// A batch of two replicas in one C++ graph, normalised and differentiated with
// the classes of ops.h.
//   split_client CASE...
// Each folder has input0 to input7: x, y_backprop and side_input of the first
// replica, the same of the second, scale and offset. Writes, per replica, y,
// x_backprop, side_input_backprop, scale_backprop, offset_backprop by the
// backward ops, and after these of both replicas the gradients by both x
// through AddSymbolicGradients: output0 to output11.

#include "support.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tf_bn_ops/ops.h"

namespace tf = tensorflow;
namespace bn = tf_bn_ops::ops;
using tf::Output;
using tf::Scope;

constexpr int kReplicas = 2;

struct Replica {
  Output x, y_backprop, side_input, y;
};

struct Inputs {
  Replica replicas[kReplicas];
  Output scale, offset;
};

Inputs ConstantsOf(const Scope& scope, const Case& c) {
  const auto constant = [&](int i) -> Output {
    return tf::ops::Const(scope, c.tensors.at(i));
  };
  Inputs in;
  for (int r = 0; r < kReplicas; ++r) {
    in.replicas[r] = {
        constant(3 * r), constant(3 * r + 1), constant(3 * r + 2), {}};
  }
  in.scale = constant(3 * kReplicas);
  in.offset = constant(3 * kReplicas + 1);
  return in;
}

Output Stacked(const Scope& scope, const std::vector<Output>& rows) {
  return tf::ops::Stack(scope, rows);
}

struct Statistics {
  Output count, mean, variance;
};

Statistics Gathered(const Scope& scope, const Inputs& in, int axis) {
  std::vector<Output> counts, means, m2s;
  for (const Replica& replica : in.replicas) {
    const bn::BatchNormStats local(scope, replica.x,
                                   bn::BatchNormStats::Axis(axis));
    counts.push_back(local.count);
    means.push_back(local.mean);
    m2s.push_back(local.m2);
  }
  const bn::BatchNormGatherStats all(scope, Stacked(scope, counts),
                                     Stacked(scope, means),
                                     Stacked(scope, m2s));
  return {all.count, all.mean, tf::ops::Div(scope, all.m2, all.count)};
}

template <typename Op>
typename Op::Attrs AttrsOf(const Case& c, int axis) {
  return Op::ActivationMode(c.activation_mode).Epsilon(c.epsilon).Axis(axis);
}

// The results of the backward ops of all replicas.
std::vector<Output> Backward(const Scope& scope, const Inputs& in,
                             const Statistics& all, const Case& c, int axis) {
  std::vector<bn::BatchNormBackwardReduce> sums;
  std::vector<Output> dy, dy_xmu;
  for (const Replica& r : in.replicas) {
    sums.emplace_back(scope, r.y_backprop, r.x, in.scale, in.offset, all.mean,
                      all.variance, std::initializer_list<tf::Input>{r.y},
                      AttrsOf<bn::BatchNormBackwardReduce>(c, axis));
    dy.push_back(sums.back().sum_dy);
    dy_xmu.push_back(sums.back().sum_dy_xmu);
  }
  const Output sum_dy = tf::ops::AddN(scope, dy);
  const Output sum_dy_xmu = tf::ops::AddN(scope, dy_xmu);
  std::vector<Output> results;
  for (int i = 0; i < kReplicas; ++i) {
    const Replica& r = in.replicas[i];
    const bn::BatchNormBackwardElemt op(
        scope, r.y_backprop, r.x, in.scale, in.offset, all.mean, all.variance,
        sum_dy, sum_dy_xmu, all.count, std::initializer_list<tf::Input>{r.y},
        AttrsOf<bn::BatchNormBackwardElemt>(c, axis).NumSideInputs(1));
    results.insert(results.end(),
                   {r.y, op.x_backprop, op.side_input_backprop[0],
                    sums[i].scale_backprop, sums[i].offset_backprop});
  }
  return results;
}

void Run(const Case& c) {
  const Scope scope = Scope::NewRootScope();
  Inputs in = ConstantsOf(scope, c);
  const int axis = c.data_format == "NCHW" ? 1 : -1;
  const Statistics all = Gathered(scope, in, axis);
  std::vector<Output> x, y, y_backprop;
  for (Replica& r : in.replicas) {
    r.y = bn::BatchNormElemt(scope, r.x, in.scale, in.offset, all.mean,
                             all.variance,
                             std::initializer_list<tf::Input>{r.side_input},
                             AttrsOf<bn::BatchNormElemt>(c, axis))
              .y;
    x.push_back(r.x);
    y.push_back(r.y);
    y_backprop.push_back(r.y_backprop);
  }
  std::vector<Output> results = Backward(scope, in, all, c, axis);
  std::vector<Output> by_x;
  Check(tf::AddSymbolicGradients(scope, y, x, y_backprop, &by_x));
  results.insert(results.end(), by_x.begin(), by_x.end());
  Check(scope.status());
  const auto tensors = RunGraph(scope, results);
  for (size_t k = 0; k < tensors.size(); ++k) {
    WriteTensor(File(c.folder, "output", k), tensors[k]);
  }
}

int main(int argc, char** argv) {
  Check(tf_bn_ops::LoadOpLibrary());
  for (int i = 1; i < argc; ++i) Run(Case(argv[i]));
  return 0;
}
