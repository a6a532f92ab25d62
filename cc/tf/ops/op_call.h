// From an op to a call of the core: attrs, accepted shapes, and which tensor
// has which role. For the kernels of every device and of XLA.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "cc/core/call.h"
#include "cc/core/formulas/forward.h"
#include "cc/tf/ops/check_shapes.h"
#include "cc/tf/ops/op_signature.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// Lists of tensors have at most one, and y must be given where it alone says
// what an activation behind a side input passed: x does not.
absl::Status CheckLists(int ys, int side_inputs, Activation activation);

// Reads the attr activation_mode and the lengths of lists, of a kernel or of a
// shape function. The activation is Identity, and there is no side input, where
// the op has no such attr.
template <typename Context>
absl::Status ReadLists(Context* context, Activation* activation,
                       int* side_inputs) {
  int ys;
  if (!context->GetAttr("num_y", &ys).ok()) ys = 1;
  if (!context->GetAttr("num_side_inputs", side_inputs).ok()) *side_inputs = 0;
  std::string mode;
  if (!context->GetAttr("activation_mode", &mode).ok()) mode = "Identity";
  *activation = ActivationNamed(mode);
  if (*activation == Activation{kNumActivations}) {
    return InvalidArgument("Unsupported activation mode: ", mode);
  }
  return CheckLists(ys, *side_inputs, *activation);
}

// Whether the forward op reads the statistics that it is given.
inline bool ReadsStatistics(const Call& call) {
  return !call.is_training || call.exponential_avg_factor != 1;
}

// Whether a call of these attrs reads its input of this role, in some shape. A
// forward op may not read the statistics, and a gradient without an activation
// reads neither offset nor y.
inline bool ReadsByAttrs(const Call& call, Role role) {
  const bool is_forward = call.formula == FormulaKind::kForward;
  const bool is_statistic = role == Role::kMean || role == Role::kVariance;
  const bool is_of_mask = role == Role::kOffset || role == Role::kY;
  if (is_statistic && is_forward) return ReadsStatistics(call);
  return !is_of_mask || is_forward || call.activation != Activation::kIdentity;
}

// What an op's attrs say of its calls.
class OpCall {
 public:
  // `saves_rstd`: the device's forward op saves rstd in reserve_space_2 in
  // training (cuDNN's convention).
  absl::Status ReadAttrs(const OpSignature& op, bool saves_rstd,
                         tensorflow::OpKernelConstruction* context);

  // The call on inputs of these shapes, without arrays; or InvalidArgument.
  absl::Status Make(const tensorflow::TensorShape* const* shapes, int count,
                    Call* call) const;

  // The role of input i; kNone where the call does not read it, and it may have
  // any size: such as a reserve_space_3 of another op.
  Role InputRole(const Call& call, int i,
                 const tensorflow::TensorShape& shape) const;

  // Whether the forward op stores its coefficients in reserve_space_3, which is
  // a placeholder otherwise: frozen, the statistics are those given.
  static bool KeepsCoefficients(const Call& call) {
    return call.is_training || call.activation != Activation::kIdentity;
  }
  static tensorflow::TensorShape CoefficientsShape(const Call& call) {
    return tensorflow::TensorShape(
        {kNumForwardCoefficients, call.view.channels});
  }

  const OpSignature& signature() const { return *op_; }
  int ChannelDim(int rank) const { return axis_.Dim(rank); }

 private:
  const OpSignature* op_ = nullptr;
  ChannelAxis axis_;
  int side_inputs_ = 0;  // Of the forward op.
  Call attrs_;
};

}  // namespace tf_bn_ops
