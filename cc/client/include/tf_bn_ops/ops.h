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
// tensorflow::AddSymbolicGradients: FusedBatchNormGradV3 or Ex for the forward
// ops, FusedBatchNormGradGrad for the first-order gradients;
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

#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/attr_value_util.h"

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

using ::tensorflow::SetAttrValue;
using AttrValues = std::map<std::string, ::tensorflow::AttrValue>;

// Of an op whose epsilon is a tensor.
inline AttrValues EpsilonTensor(double epsilon) {
  AttrValues values;
  SetAttrValue(::tensorflow::Tensor(epsilon), &values["epsilon"]);
  return values;
}

// Adds the node TfBnOps>`name` with `inputs` and, behind them, the tensors of
// `list` if there is one; a null operation if the scope has an error then.
TF_BN_OPS_EXPORT Operation AddNode(const Scope& scope, const std::string& name,
                                   std::initializer_list<Input> inputs,
                                   const InputList* list,
                                   const AttrValues& attrs);

// An attribute `name` with a default: a member of the class A of attributes,
// whose setter returns a changed copy, and a setter that begins with defaults.
#define TF_BN_OPS_ATTR(Name, name, type, argument, ...) \
  struct Name {                                         \
    template <typename A>                               \
    struct Member {                                     \
      type name##_ = __VA_ARGS__;                       \
      [[nodiscard]] A Name(argument x) const {          \
        A attrs = static_cast<const A&>(*this);         \
        attrs.name##_ = type(x);                        \
        return attrs;                                   \
      }                                                 \
      void AddTo(AttrValues* all) const {               \
        SetAttrValue(name##_, &(*all)[#name]);          \
      }                                                 \
    };                                                  \
    template <typename A>                               \
    struct Setter {                                     \
      static A Name(argument x) { return A().Name(x); } \
    };                                                  \
  };

// The class Attrs of an op, with a setter for each of its attributes.
template <typename Op, typename... Attr>
struct AttrsOf {
  struct Attrs : Attr::template Member<Attrs>... {
    AttrValues Values() const {
      AttrValues values;
      (Attr::template Member<Attrs>::AddTo(&values), ...);
      return values;
    }
  };
};

// The base of the class of an op: its node, attributes and their setters.
template <typename Op, typename... Attr>
struct OpClass
    : AttrsOf<Op, Attr...>,
      Attr::template Setter<typename AttrsOf<Op, Attr...>::Attrs>... {
  Operation operation;

 protected:
  OpClass(const Scope& scope, const char* name,
          std::initializer_list<Input> inputs, const AttrValues& attrs,
          const InputList* list = nullptr)
      : operation(AddNode(scope, name, inputs, list, attrs)) {}

  // Output i, null if there is no node; and the outputs from i on.
  Output At(int i) const {
    return operation.node() == nullptr ? Output() : operation.output(i);
  }
  OutputList From(int i) const {
    OutputList list;
    if (operation.node() == nullptr) return list;
    for (; i < operation.num_outputs(); ++i) list.push_back(At(i));
    return list;
  }
};

}  // namespace internal
}  // namespace ops
}  // namespace tf_bn_ops

// The classes. Errors of all constructors go to scope.status():
// InvalidArgument for types, shapes and attributes that the op does not take,
// NotFound before LoadOpLibrary().
#include "tf_bn_ops/generated/op_classes.h"
#undef TF_BN_OPS_ATTR
