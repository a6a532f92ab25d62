// The second-order gradient as a graph of operations on whole tensors: the
// formulas of second_order.h in the notation and order of docs/math.md, for
// whoever builds graphs (cc/xla, cc/client). The kernels have sums, finish and
// element, which a graph has no use for (docs/adr/0047-the-math-once.md).

#ifndef TF_BN_OPS_CC_CORE_FORMULAS_SECOND_ORDER_GRAPH_H_
#define TF_BN_OPS_CC_CORE_FORMULAS_SECOND_ORDER_GRAPH_H_

#include "cc/core/generated/roles.h"

namespace tf_bn_ops {

// A tensor, or the same less its mean: as sums read it, and as elements are
// computed from it, which may be in another type.
template <typename V>
struct GraphTensor {
  V in_sums, in_elements;
};

template <typename V>
struct SecondOrderResults {
  V y_backprop_grad, x_grad, scale_grad;
};

// `graph` builds values V, which have the operators + - *:
//   GraphTensor<V> Tensor(Role), Centered(Role)  an input of the shape of x
//   V Vector(Role)              an input with one element per channel
//   V Sum(V), Mean(V)           over the elements of each channel
//   V Spread(V)                 a vector, to be combined with tensors
//   V Rstd(V variance)          1/sqrt(variance + epsilon)
//   V Count(), Constant(double) vectors: elements of a channel; a number
template <typename V, typename Graph>
SecondOrderResults<V> BuildSecondOrderGraph(const Graph& graph,
                                            bool is_training) {
  const auto spread = [&](const V& v) { return graph.Spread(v); };
  const V scale = graph.Vector(Role::kScale);
  const V gs = graph.Vector(Role::kScaleBackpropGrad);
  const V go = spread(graph.Vector(Role::kOffsetBackpropGrad));
  if (!is_training) {
    const GraphTensor<V> gx = graph.Tensor(Role::kXBackpropGrad);
    const GraphTensor<V> dy = graph.Tensor(Role::kYBackprop);
    const V rstd = graph.Rstd(graph.Vector(Role::kVariance));
    const V f = scale * rstd;
    const V xhat = (graph.Tensor(Role::kX).in_elements -
                    spread(graph.Vector(Role::kMean))) *
                   spread(rstd);
    return {spread(f) * gx.in_elements + spread(gs) * xhat + go,
            spread(gs * rstd) * dy.in_elements,
            rstd * graph.Sum(gx.in_sums * dy.in_sums)};
  }
  const GraphTensor<V> gx = graph.Centered(Role::kXBackpropGrad);
  const GraphTensor<V> dy = graph.Centered(Role::kYBackprop);
  const GraphTensor<V> x = graph.Centered(Role::kX);
  const auto mean = [&](const V& v) { return graph.Mean(v); };
  const V rstd = graph.Rstd(mean(x.in_sums * x.in_sums));
  const V f = scale * rstd;
  const V a = rstd * mean(gx.in_sums * x.in_sums);
  const V s = rstd * mean(dy.in_sums * x.in_sums);
  const V b = mean(gx.in_sums * dy.in_sums);
  const V p = gs - f * a;
  const V three = graph.Constant(3);
  const V xhat = x.in_elements * spread(rstd);
  return {spread(f) * gx.in_elements + spread(p) * xhat + go,
          spread(rstd * p) * dy.in_elements -
              spread(rstd * f * s) * gx.in_elements -
              spread(rstd * (gs * s + f * (b - three * a * s))) * xhat,
          rstd * graph.Count() * (b - a * s)};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_FORMULAS_SECOND_ORDER_GRAPH_H_
