// What shape inference and the kernels know of an op: its formula, and names,
// kinds and roles of its arguments. generated/op_signatures.h lists all
// ops.

#pragma once

#include <algorithm>
#include <string_view>

#include "cc/core/call.h"

namespace tf_bn_ops {

// The shape of x; [channels]; []; what is between two ops; [0].
enum class ArgKind { kView, kVector, kScalar, kOpaque, kPlaceholder };

// The activation that an attr activation_mode names; kNumActivations: none.
inline Activation ActivationNamed(std::string_view mode) {
  int i = 0;
  while (i < kNumActivations && mode != kActivationModes[i]) ++i;
  return static_cast<Activation>(i);
}

struct OpSignature {
  // A list of tensors, which is the last argument, has at most one.
  struct Arg {
    const char* name;
    Role role;  // kNone: the core does not know it, and it is a placeholder.

    ArgKind kind() const {
      if (role == Role::kNone) return ArgKind::kPlaceholder;
      switch (kRoles[static_cast<int>(role)].kind) {
        case ArrayKind::kView:
          return ArgKind::kView;
        case ArrayKind::kScalar:
          return ArgKind::kScalar;
        case ArrayKind::kCoefficients:
          return ArgKind::kOpaque;
        default:
          return ArgKind::kVector;
      }
    }
  };
  // What says which dimension of x the channels are: an attr, or nothing, and
  // they are dimension 1.
  enum Layout { kAxis, kDataFormat, kChannelsFirst };
  // Whose checks of shapes: those that follow from the kinds of the arguments,
  // or the checks of TensorFlow's ops, which save rstd on a GPU.
  enum Checks { kByKind, kForward, kGradient };

  FormulaKind formula;
  // A part of synchronised batch normalization, with statistics in float64.
  bool is_part;
  bool is_training;  // Where there is no such attr.
  Layout layout;
  Checks checks;
  int min_channels;
  int x;  // The input that is x.
  int num_inputs, num_outputs;
  Arg inputs[10], outputs[6];

  // Tensor i of a call: a list comes last.
  const Arg& Input(int i) const { return inputs[std::min(i, num_inputs - 1)]; }
  const Arg& Output(int i) const {
    return outputs[std::min(i, num_outputs - 1)];
  }
  // The input with this role; num_inputs: there is none.
  int InputOf(Role role) const {
    int i = 0;
    while (i < num_inputs && inputs[i].role != role) ++i;
    return i;
  }
};

}  // namespace tf_bn_ops
