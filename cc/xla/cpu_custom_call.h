// The first-order gradient as a custom call of XLA's typed FFI from a program
// that XLA compiles for the CPU: the call runs this library's CPU backend, and
// results are bitwise identical to those of the op that is not compiled.

#ifndef TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_H_
#define TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/cpu/driver.h"
#include "cc/xla/cpu_custom_call_target.h"
#include "cc/xla/hlo_first_order.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {

// x_backprop, scale_backprop, offset_backprop
inline std::vector<xla::XlaOp> BuildCpuCustomCall(
    const XlaBatchNormGradArgs& args) {
  int64_t epsilon_bits;
  std::memcpy(&epsilon_bits, &args.epsilon, sizeof(epsilon_bits));
  // Attributes travel as text: an MLIR dictionary.
  const std::string attributes = absl::StrCat(
      "{outer = ", args.view.outer, " : i64, channels = ", args.view.channels,
      " : i64, inner = ", args.view.inner,
      " : i64, is_training = ", args.is_training ? "true" : "false",
      ", epsilon_bits = ", epsilon_bits, " : i64}");
  // The CPU backend reads elements in the order of the dimensions.
  const auto in_order = [](xla::Shape shape) {
    *shape.mutable_layout() = xla::LayoutUtil::GetDefaultLayoutForShape(shape);
    return shape;
  };
  const xla::Shape data = in_order(args.shape);
  const xla::Shape stat = in_order(args.stat_shape);
  const int64_t workspace =
      static_cast<int64_t>(CpuWorkspaceBytes<BatchNormGradFormula>(args.view));
  const xla::XlaOp call = xla::CustomCallWithLayout(
      args.x.builder(), kCpuCustomCallTarget,
      {args.y_backprop, args.x, args.scale, args.mean, args.variance},
      xla::ShapeUtil::MakeTupleShape(
          {data, stat, stat,
           in_order(xla::ShapeUtil::MakeShape(xla::U8, {workspace}))}),
      {data, data, stat, stat, stat}, attributes, /*has_side_effect=*/false,
      /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  return {xla::GetTupleElement(call, 0), xla::GetTupleElement(call, 1),
          xla::GetTupleElement(call, 2)};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_H_
