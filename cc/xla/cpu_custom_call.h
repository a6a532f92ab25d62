// A formula as a custom call of XLA's typed FFI from a program that XLA
// compiles for the CPU: the call runs this library's CPU backend, and results
// are bitwise identical to those of the op that is not compiled.

#ifndef TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_H_
#define TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/cpu/driver.h"
#include "cc/xla/cpu_custom_call_lists.h"
#include "cc/xla/hlo_channels.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {

// The values and shapes of operands, or the shapes of results (see
// CpuCustomCall).
class XlaCallList {
 public:
  explicit XlaCallList(const XlaArgs& args)
      : data_(InOrder(args.shape)),
        vector_(InOrder(args.stat_shape)),
        wide_(InOrder(
            xla::ShapeUtil::MakeShape(xla::F64, {args.view.channels}))) {}

  void Data(xla::XlaOp value) { Add(value, data_); }
  void Vector(xla::XlaOp value) { Add(value, vector_); }
  void Wide(xla::XlaOp value) { Add(value, wide_); }
  void Scalar(xla::XlaOp value) {
    Add(value, xla::ShapeUtil::MakeShape(xla::F64, {}));
  }
  void Data(const void*) { shapes_.push_back(data_); }
  void Vector(const void*) { shapes_.push_back(vector_); }
  void Wide(const void*) { shapes_.push_back(wide_); }
  void Bytes(int64_t size) {
    shapes_.push_back(InOrder(xla::ShapeUtil::MakeShape(xla::U8, {size})));
  }

  const std::vector<xla::XlaOp>& values() const { return values_; }
  const std::vector<xla::Shape>& shapes() const { return shapes_; }

 private:
  void Add(xla::XlaOp value, const xla::Shape& shape) {
    values_.push_back(value);
    shapes_.push_back(shape);
  }
  // The CPU backend reads elements in the order of the dimensions.
  static xla::Shape InOrder(xla::Shape shape) {
    *shape.mutable_layout() = xla::LayoutUtil::GetDefaultLayoutForShape(shape);
    return shape;
  }

  const xla::Shape data_, vector_, wide_;
  std::vector<xla::XlaOp> values_;
  std::vector<xla::Shape> shapes_;
};

// The outputs of the call that `args` are arguments of, in the order of
// CpuCustomCall's results.
template <typename Args>
std::vector<xla::XlaOp> BuildCpuCustomCall(const Args& args) {
  using Call = CpuCustomCall<typename Args::Call>;
  using F = typename Call::Formula;
  // An MLIR dictionary, as text.
  std::string attributes;
  AllAttributes<typename Args::Call>(
      args, [&](const char* name, const auto& value) {
        absl::StrAppend(&attributes, attributes.empty() ? "{" : ", ", name,
                        " = ", BitsOf(value), " : i64");
      });
  attributes += "}";

  XlaCallList operands(args), results(args);
  Call::Operands(args, operands);
  tf_bn_ops::Call unset;  // Its members name the results.
  Call::Results(unset, results);
  const size_t outputs = results.shapes().size();
  const DType computed_in =
      args.shape.element_type() == xla::F64 ? DType::kFloat64 : DType::kFloat32;
  results.Bytes(static_cast<int64_t>(
      CpuWorkspaceBytes(F::kKind, args.view, computed_in)));

  const xla::XlaOp call = xla::CustomCallWithLayout(
      args.x.builder(), Call::kTarget, operands.values(),
      xla::ShapeUtil::MakeTupleShape(results.shapes()), operands.shapes(),
      attributes, /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
      /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<xla::XlaOp> values;
  for (size_t i = 0; i < outputs; ++i) {
    values.push_back(xla::GetTupleElement(call, static_cast<int64_t>(i)));
  }
  return values;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_H_
