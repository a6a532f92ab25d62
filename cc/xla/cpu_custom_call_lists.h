// What the custom calls of XLA's CPU programs pass to the CPU backend: name,
// attributes, operands and results of each formula's call. cpu_custom_call.h
// writes calls by these lists, cpu_custom_call_handler.cc reads them back.
// Includes nothing of XLA, whose headers take most of a minute to compile.

#ifndef TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_LISTS_H_
#define TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_LISTS_H_

#include <cstdint>
#include <cstring>

#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"

namespace tf_bn_ops {

// The call of formula F, or of a part of it:
//
//   using Formula = F;
//   static constexpr char kTarget[];  // Its name.
//   // In order, attribute(name, member) of each member of `args` beside those
//   // of AllAttributes; Call and XLA's arguments have the same members.
//   static void Attributes(Args& args, const Attribute& attribute);
//   // visitor.Data(member) or visitor.Vector(member) of each input, that is
//   // [outer, channels, inner] or [channels]; visitor.Wide(member): [channels]
//   // of float64, visitor.Scalar(member): one element of float64.
//   static void Operands(Args& args, Visitor& visitor);
//   // The same of each output.
//   static void Results(tf_bn_ops::Call& args, Visitor& visitor);
//
// One more result is the workspace.
template <typename F>
struct CpuCustomCall;

template <>
struct CpuCustomCall<BatchNormGradFormula> {
  using Formula = BatchNormGradFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_grad";

  template <typename Args, typename Attribute>
  static void Attributes(Args&, const Attribute&) {}

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    visitor.Data(args.y_backprop);
    visitor.Data(args.x);
    visitor.Vector(args.scale);
    visitor.Vector(args.mean);
    visitor.Vector(args.variance);
  }

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    visitor.Data(args.x_backprop);
    visitor.Vector(args.scale_backprop);
    visitor.Vector(args.offset_backprop);
  }
};

// The mask is from y: the forward of an XLA program leaves no coefficients.
template <>
struct CpuCustomCall<BatchNormGradExFromYFormula>
    : CpuCustomCall<BatchNormGradFormula> {
  using Formula = BatchNormGradExFromYFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_grad_ex_from_y";

  template <typename Args, typename Attribute>
  static void Attributes(Args& args, const Attribute& attribute) {
    attribute("activation", args.activation);
  }

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    CpuCustomCall<BatchNormGradFormula>::Operands(args, visitor);
    visitor.Data(args.y);
  }
};

template <>
struct CpuCustomCall<BatchNormGradExAddFormula>
    : CpuCustomCall<BatchNormGradExFromYFormula> {
  using Formula = BatchNormGradExAddFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_grad_ex_add";

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    CpuCustomCall<BatchNormGradFormula>::Results(args, visitor);
    visitor.Data(args.side_input_backprop);
  }
};

template <>
struct CpuCustomCall<BatchNormFormula> {
  using Formula = BatchNormFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm";

  template <typename Args, typename Attribute>
  static void Attributes(Args& args, const Attribute& attribute) {
    attribute("exponential_avg_factor", args.exponential_avg_factor);
    attribute("bessel_correction", args.bessel_correction);
    attribute("activation", args.activation);
  }

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    visitor.Data(args.x);
    visitor.Vector(args.scale);
    visitor.Vector(args.offset);
    visitor.Vector(args.mean);
    visitor.Vector(args.variance);
  }

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    visitor.Data(args.y);
    visitor.Vector(args.batch_mean);
    visitor.Vector(args.batch_variance);
    visitor.Vector(args.saved_mean);
    visitor.Vector(args.saved_variance);
  }
};

template <>
struct CpuCustomCall<BatchNormAddFormula> : CpuCustomCall<BatchNormFormula> {
  using Formula = BatchNormAddFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_add";

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    CpuCustomCall<BatchNormFormula>::Operands(args, visitor);
    visitor.Data(args.side_input);
  }
};

// The parts of synchronised batch normalization: calls of formulas of which one
// pass is wanted, or that of a gradient.
struct BatchNormStatsCall {};
struct BatchNormElemtCall {};
struct BatchNormElemtAddCall {};
struct BatchNormBackwardReduceCall {};       // The mask from x.
struct BatchNormBackwardReduceFromYCall {};  // The mask from y.

template <>
struct CpuCustomCall<BatchNormStatsCall> {
  using Formula = BatchNormFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_stats";

  template <typename Args, typename Attribute>
  static void Attributes(Args&, const Attribute&) {}

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    visitor.Data(args.x);
  }

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    visitor.Wide(args.local_mean);
    visitor.Wide(args.local_m2);
  }
};

// What all parts have that take statistics.
struct SplitCallInputs {
  template <typename Args, typename Attribute>
  static void Attributes(Args& args, const Attribute& attribute) {
    attribute("float64_statistics", args.float64_statistics);
    attribute("activation", args.activation);
  }

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    visitor.Data(args.x);
    visitor.Vector(args.scale);
    visitor.Vector(args.offset);
    visitor.Wide(args.mean);
    visitor.Wide(args.variance);
  }
};

template <>
struct CpuCustomCall<BatchNormElemtCall> : SplitCallInputs {
  using Formula = BatchNormFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_elemt";

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    visitor.Data(args.y);
  }
};

template <>
struct CpuCustomCall<BatchNormElemtAddCall>
    : CpuCustomCall<BatchNormElemtCall> {
  using Formula = BatchNormAddFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_elemt_add";

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    SplitCallInputs::Operands(args, visitor);
    visitor.Data(args.side_input);
  }
};

template <>
struct CpuCustomCall<BatchNormBackwardReduceCall> : SplitCallInputs {
  using Formula = BatchNormGradExFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_backward_reduce";

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    SplitCallInputs::Operands(args, visitor);
    visitor.Data(args.y_backprop);
  }

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    visitor.Wide(args.local_sum_dy);
    visitor.Wide(args.local_sum_dy_xmu);
    visitor.Vector(args.scale_backprop);
    visitor.Vector(args.offset_backprop);
  }
};

template <>
struct CpuCustomCall<BatchNormBackwardReduceFromYCall>
    : CpuCustomCall<BatchNormBackwardReduceCall> {
  using Formula = BatchNormGradExFromYFormula;
  static constexpr char kTarget[] =
      "tf_bn_ops.batch_norm_backward_reduce_from_y";

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    CpuCustomCall<BatchNormBackwardReduceCall>::Operands(args, visitor);
    visitor.Data(args.y);
  }
};

template <>
struct CpuCustomCall<BatchNormBackwardElemtFromXFormula> : SplitCallInputs {
  using Formula = BatchNormBackwardElemtFromXFormula;
  static constexpr char kTarget[] =
      "tf_bn_ops.batch_norm_backward_elemt_from_x";

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    CpuCustomCall<BatchNormBackwardReduceCall>::Operands(args, visitor);
    visitor.Wide(args.sum_dy);
    visitor.Wide(args.sum_dy_xmu);
    visitor.Scalar(args.count);
  }

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    visitor.Data(args.x_backprop);
  }
};

template <>
struct CpuCustomCall<BatchNormBackwardElemtFromYFormula>
    : CpuCustomCall<BatchNormBackwardElemtFromXFormula> {
  using Formula = BatchNormBackwardElemtFromYFormula;
  static constexpr char kTarget[] =
      "tf_bn_ops.batch_norm_backward_elemt_from_y";

  template <typename Args, typename Visitor>
  static void Operands(Args& args, Visitor& visitor) {
    CpuCustomCall<BatchNormBackwardElemtFromXFormula>::Operands(args, visitor);
    visitor.Data(args.y);
  }
};

template <>
struct CpuCustomCall<BatchNormBackwardElemtAddFormula>
    : CpuCustomCall<BatchNormBackwardElemtFromYFormula> {
  using Formula = BatchNormBackwardElemtAddFormula;
  static constexpr char kTarget[] = "tf_bn_ops.batch_norm_backward_elemt_add";

  template <typename Visitor>
  static void Results(tf_bn_ops::Call& args, Visitor& visitor) {
    CpuCustomCall<BatchNormBackwardElemtFromXFormula>::Results(args, visitor);
    visitor.Data(args.side_input_backprop);
  }
};

// The call of BatchNormGatherStats, which has no view.
constexpr char kGatherStatsTarget[] = "tf_bn_ops.batch_norm_gather_stats";

// All attributes of a call, in order.
template <typename Call, typename Args, typename Attribute>
void AllAttributes(Args& args, const Attribute& attribute) {
  attribute("outer", args.view.outer);
  attribute("channels", args.view.channels);
  attribute("inner", args.view.inner);
  attribute("is_training", args.is_training);
  attribute("epsilon", args.epsilon);
  CpuCustomCall<Call>::Attributes(args, attribute);
}

// Attributes travel as the bits of their values, so that none is rounded on its
// way through text.
template <typename T>
int64_t BitsOf(T value) {
  static_assert(sizeof(T) <= sizeof(int64_t));
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}
template <typename T>
void SetFromBits(int64_t bits, T* value) {
  std::memcpy(value, &bits, sizeof(*value));
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_LISTS_H_
