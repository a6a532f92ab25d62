// The ops of tf_bn_ops as C++ classes, for graphs that are built with
// tensorflow::Scope.
//
//   absl::Status status = tf_bn_ops::LoadOpLibrary();
//   namespace bn = tf_bn_ops::ops;      // or tensorflow::ops: same spelling
//   bn::FusedBatchNormV3 norm(
//       scope, x, scale, offset, mean, variance,
//       bn::FusedBatchNormV3::Epsilon(1e-3f).DataFormat("NCHW"));
//   ... norm.y, norm.batch_mean, norm.batch_variance ...
//   bn::FusedBatchNormGradV3 grad(
//       scope, y_backprop, x, scale, norm.reserve_space_1,
//       norm.reserve_space_2, norm.reserve_space_3,
//       bn::FusedBatchNormGradV3::Epsilon(1e-3f).DataFormat("NCHW"));
//   ... grad.x_backprop, grad.scale_backprop, grad.offset_backprop ...
//
// The client library registers gradients for
// tensorflow::AddSymbolicGradients: FusedBatchNormGrad, V2 or V3, for the
// forward ops, FusedBatchNormGradGrad for the first-order gradients;
// BatchNormStats, GatherStats and Elemt have gradients, too.
//
// Of synchronised batch normalization each op is one pass over the batch of one
// replica. Statistics and sums are double; what travels between replicas is up
// to the caller:
//
//   bn::BatchNormStats local(scope, x);
//   // counts, means, m2s: the statistics of all replicas, by rank.
//   bn::BatchNormGatherStats all(scope, counts, means, m2s);
//   // variance = all.m2 / all.count
//   bn::BatchNormElemt norm(scope, x, scale, offset, all.mean, variance,
//                           tensorflow::OutputList());
//
// docs/api.md has the formulas, and what inputs and outputs are.

#ifndef TF_BN_OPS_OPS_H_
#define TF_BN_OPS_OPS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

#define TF_BN_OPS_EXPORT __attribute__((visibility("default")))

namespace tf_bn_ops {

// Registers the ops and their kernels with TensorFlow, in this process. To be
// called once before graphs with the ops are built or run; calling it again,
// from any thread, or after Python has loaded the ops, does nothing.
//
// `path` names libtf_bn_ops.so or the folder that holds it. Empty: what the
// environment variable TF_BN_OPS_LIBRARY names, else the library beside
// libtf_bn_ops_client.so.
//
// Errors, one sentence each: NotFound (no such file), FailedPrecondition (the
// file cannot be loaded, for instance because it was built for another
// TensorFlow).
TF_BN_OPS_EXPORT absl::Status LoadOpLibrary(const std::string& path = "");

namespace ops {

using ::tensorflow::Input;
using ::tensorflow::InputList;
using ::tensorflow::Operation;
using ::tensorflow::Output;
using ::tensorflow::OutputList;
using ::tensorflow::Scope;

namespace internal {

// A copy of `base`, which is a base of A, with another value of a member.
template <typename A, typename Base, typename T, typename Value>
A With(const Base& base, T Base::* member, const Value& value) {
  A attrs = static_cast<const A&>(base);
  attrs.*member = T(value);
  return attrs;
}

// The attributes of an op: Visit(f) calls f(name, value) for each.
template <typename A, template <typename> class... Attr>
struct AttrsOf : Attr<A>... {
  template <typename F>
  void Visit(F&& f) const {
    (Attr<A>::Visit(f), ...);
  }
};

}  // namespace internal
}  // namespace ops
}  // namespace tf_bn_ops

// The classes. Errors of all constructors go to scope.status():
// InvalidArgument for types, shapes and attributes that the op does not take,
// NotFound before LoadOpLibrary().
#include "tf_bn_ops/generated/op_classes.h"

#endif  // TF_BN_OPS_OPS_H_
