// What the formulas of single elements in cc/core/formulas, which are templates
// over the type of a value, are instantiated with to build XLA's operations.

#pragma once

#include "cc/core/formulas/exponential.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_bn_ops {

// A value of the computation that is built, or a number, which becomes a
// constant of the type and shape of what it meets.
struct HloValue {
  HloValue() = default;
  HloValue(xla::XlaOp op) : op(op) {}          // NOLINT: implicit
  HloValue(double number) : number(number) {}  // NOLINT: implicit
  bool IsNumber() const { return op.IsUninitialized(); }
  xla::XlaOp Beside(const HloValue& other) const {
    return IsNumber() ? xla::ScalarLike(other.op, number) : op;
  }

  xla::XlaOp op;
  double number = 0;
};

#define TFBN_HLO_OPERATOR(symbol, Build)                    \
  inline HloValue operator symbol(HloValue a, HloValue b) { \
    return Build(a.Beside(b), b.Beside(a));                 \
  }
TFBN_HLO_OPERATOR(-, xla::Sub)
TFBN_HLO_OPERATOR(*, xla::Mul)
TFBN_HLO_OPERATOR(/, xla::Div)
TFBN_HLO_OPERATOR(<, xla::Lt)
TFBN_HLO_OPERATOR(>, xla::Gt)
TFBN_HLO_OPERATOR(>=, xla::Ge)
TFBN_HLO_OPERATOR(&, xla::And)
#undef TFBN_HLO_OPERATOR
inline HloValue operator+(HloValue a, HloValue b) {
  if (a.IsNumber() && b.IsNumber()) return a.number + b.number;
  return xla::Add(a.Beside(b), b.Beside(a));
}
inline HloValue Select(HloValue mask, HloValue a, HloValue b) {
  return xla::Select(mask.op, a.Beside(b), b.Beside(a));
}
inline HloValue ExpOfMinusAbs(HloValue v) {
  return xla::Exp(xla::Neg(xla::Abs(v.op)));
}

template <>
struct LanesOf<HloValue, false> {
  using Lane = double;
  static double First(const HloValue& v) { return v.number; }
};

}  // namespace tf_bn_ops
