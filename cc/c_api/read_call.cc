// Checks calls of the C ABI.

#include "cc/c_api/read_call.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "cc/core/op_calls.h"

namespace tf_bn_ops::c_api {
namespace {

// Limit on the elements of a view: more than any memory holds, and small enough
// that no size that the core computes from it overflows.
constexpr int64_t kMaxElements = int64_t{1} << 47;

template <typename Enum>
bool IsBelow(Enum value, int limit) {
  const auto number = static_cast<int32_t>(value);
  return number >= 0 && number < limit;
}

// An array that is not aligned to elements of `dtype`: loads and non-temporal
// stores of whole vectors fault there, on CPUs and GPUs.
bool IsMisaligned(const void* data, DType dtype) {
  return (reinterpret_cast<uintptr_t>(data) & (SizeOf(dtype) - 1)) != 0;
}
std::string Misaligned(const char* name) {
  return std::string(name) + " must be aligned to its element type";
}

// Roles, a bit for each: a vector of them took one to two percent of the
// smallest calls (5 microseconds).
static_assert(kNumRoles <= 32);
template <typename... Roles>
constexpr uint32_t Bits(Roles... roles) {
  return (uint32_t{0} | ... | (uint32_t{1} << static_cast<int>(roles)));
}
constexpr uint32_t kStatistics = Bits(Role::kMean, Role::kVariance);
constexpr uint32_t kLocalStatistics =
    Bits(Role::kLocalMean, Role::kLocalM2, Role::kLocalCount);
constexpr uint32_t kLocalSums = Bits(Role::kLocalSumDy, Role::kLocalSumDyXmu);
constexpr uint32_t kTotals = Bits(Role::kSumDy, Role::kSumDyXmu, Role::kCount);
// Those that the gradient and the second order read of the forward's outputs.
constexpr uint32_t kReadByGradients =
    Bits(Role::kY, Role::kForwardCoefficients);

uint32_t ArraysOf(const tfbn_call& call) {
  uint32_t bits = 0;
  for (int i = 0; i < kNumRoles; ++i) {
    const bool has = ArrayOf(call, static_cast<Role>(i)) != nullptr;
    bits |= uint32_t{has} << i;
  }
  return bits;
}

// A part of a formula, which the arrays of a call choose: what it must have,
// and the outputs that it writes beside those where they are given. It writes
// no others, which a call therefore must not have.
struct Part {
  uint32_t needed = 0, written = 0;
  const char* name = "";
  std::string error = {};  // There is no such call.
};

Part ForwardPart(const tfbn_call& call, uint32_t has) {
  if ((has & kLocalStatistics) != 0) {
    return {Bits(Role::kX) | kLocalStatistics, 0,
            "with local_mean, local_m2 and local_count",
            call.is_training ? ""
                             : "is_training must not be 0 with local_mean, "
                               "local_m2 and local_count"};
  }
  constexpr uint32_t kStored = Bits(Role::kBatchMean, Role::kBatchVariance,
                                    Role::kSavedMean, Role::kSavedVariance);
  Part part = {Bits(Role::kX, Role::kScale, Role::kOffset, Role::kY),
               kStored | Bits(Role::kForwardCoefficients),
               "in the forward formula"};
  if (!call.is_training || call.exponential_avg_factor != 1) {
    part.needed |= kStatistics;
  }
  if (!call.float64_statistics) {
    part.needed |= kStored;
  } else if (call.is_training) {
    part.error = "float64_statistics must be 0 in training";
  }
  return part;
}

// What the mask or the derivative of an activation is computed from.
uint32_t NeededByActivation(const tfbn_call& call, bool is_part) {
  const bool adds = call.side_input_backprop != nullptr;
  if (call.activation == Activation::kIdentity) return 0;
  if (IsSmooth(call.activation)) {
    return Bits(Role::kOffset) | (adds ? Bits(Role::kY) : 0);
  }
  // The mask is from x where there is no y, but for a side input.
  const bool takes_y = adds || !is_part || call.y != nullptr;
  return Bits(takes_y ? Role::kY : Role::kOffset);
}

Part GradientPart(const tfbn_call& call, uint32_t has) {
  constexpr uint32_t kInputs =
      Bits(Role::kYBackprop, Role::kX, Role::kScale) | kStatistics;
  const uint32_t totals = has & kTotals & ~Bits(Role::kCount);
  const uint32_t sums = has & kLocalSums;
  const uint32_t activation =
      NeededByActivation(call, totals != 0 || sums != 0);
  const uint32_t needed = kInputs | activation;
  if (IsSmooth(call.activation) && (totals | sums) != 0) {
    const int first = __builtin_ctz(totals | sums);
    return {0, 0, "",
            std::string(kRoles[first].name) +
                " must be NULL with a smooth activation"};
  }
  if (totals != 0) {
    return {needed | kTotals | Bits(Role::kXBackprop),
            Bits(Role::kSideInputBackprop), "with sum_dy and sum_dy_xmu",
            call.is_training ? "is_training must be 0 with sum_dy" : ""};
  }
  constexpr uint32_t kVectors =
      Bits(Role::kScaleBackprop, Role::kOffsetBackprop);
  if (sums == 0) {
    return {needed | kVectors | Bits(Role::kXBackprop),
            Bits(Role::kSideInputBackprop), "in the gradient"};
  }
  // With x_backprop the whole gradient, without it the sums alone.
  Part part = {needed | kVectors | kLocalSums, 0,
               "with local_sum_dy and without x_backprop"};
  if ((has & Bits(Role::kXBackprop)) != 0) {
    part.written = Bits(Role::kXBackprop, Role::kSideInputBackprop);
    part.name = "in the gradient";
  }
  if (!call.is_training) {
    part.error = "is_training must not be 0 with local_sum_dy";
  }
  return part;
}

Part SecondOrderPart(const tfbn_call& call) {
  return {
      Bits(Role::kXBackpropGrad, Role::kScaleBackpropGrad,
           Role::kOffsetBackpropGrad, Role::kYBackprop, Role::kX, Role::kScale,
           Role::kYBackpropGrad, Role::kXGrad, Role::kScaleGrad) |
          kStatistics,
      0, "in the second order",
      call.float64_statistics
          ? "float64_statistics must be 0 in the second order"
          : ""};
}

bool HasElements(const tfbn_call& call, int role) {
  switch (kRoles[role].kind) {
    case ArrayKind::kView:
      return NumElements(call.view) > 0;
    case ArrayKind::kScalar:
      return true;
    default:
      return call.view.channels > 0;
  }
}

CallPart CallPartOf(const tfbn_call& call) {
  switch (call.formula) {
    case FormulaKind::kForward:
      return call.local_mean != nullptr ? CallPart::kSums : CallPart::kWhole;
    case FormulaKind::kGradient:
      if (HasTotals(call)) return CallPart::kElements;
      return call.x_backprop == nullptr ? CallPart::kSums : CallPart::kWhole;
    case FormulaKind::kSecondOrder:
      break;
  }
  return CallPart::kWhole;
}

std::string CheckArrays(const tfbn_call& call) {
  if (!IsBelow(call.formula, kNumFormulaKinds)) {
    return "formula must be TFBN_FORWARD, TFBN_GRADIENT or TFBN_SECOND_ORDER";
  }
  const uint32_t has = ArraysOf(call);
  const bool is_forward = call.formula == FormulaKind::kForward;
  Part part = is_forward                               ? ForwardPart(call, has)
              : call.formula == FormulaKind::kGradient ? GradientPart(call, has)
                                                       : SecondOrderPart(call);
  if (!part.error.empty()) return std::move(part.error);
  uint32_t outputs = ~((uint32_t{1} << kNumInputRoles) - 1);
  if (!is_forward) outputs &= ~kReadByGradients;
  const uint32_t unwritten = has & outputs & ~(part.needed | part.written);
  for (uint32_t lacks = part.needed & ~has; lacks != 0; lacks &= lacks - 1) {
    const int role = __builtin_ctz(lacks);
    if (HasElements(call, role)) {
      return std::string(kRoles[role].name) + " must not be NULL";
    }
  }
  // Whatever the formula, the core takes it for a call with totals.
  if (call.formula != FormulaKind::kGradient && HasTotals(call)) {
    return std::string("sum_dy must be NULL ") + part.name;
  }
  if (unwritten != 0) {
    return std::string(kRoles[__builtin_ctz(unwritten)].name) +
           " must be NULL " + part.name + ": it would not be written";
  }
  if (IsOpCall(call.formula, CallPartOf(call), call.dtype,
               call.is_training || HasTotals(call), call.activation)) {
    return "";
  }
  return std::string("dtype must not be ") +
         kDTypeTexts[static_cast<int>(call.dtype)] +
         " in this call: no op makes it, and there is no kernel of it";
}

}  // namespace

std::string CheckDType(DType dtype, const char* name) {
  if (IsBelow(dtype, kNumDTypes)) return "";
  return std::string(name) + " must be one of the TFBN_ element types";
}

std::string CheckView(const View& view) {
  if (view.outer < 0 || view.channels < 0 || view.inner < 0) {
    return "outer, channels and inner must not be negative";
  }
  int64_t elements;
  if (__builtin_mul_overflow(view.outer, view.channels, &elements) ||
      __builtin_mul_overflow(elements, view.inner, &elements) ||
      elements > kMaxElements) {
    return "outer * channels * inner is larger than any memory";
  }
  // Also where there are no elements: sums are per channel.
  if (view.channels > kMaxElements) {
    return "channels is larger than any memory";
  }
  return "";
}

std::string CheckCall(const tfbn_call* call) {
  if (call == nullptr) return "call must not be NULL";
  std::string error = CheckDType(call->dtype, "dtype");
  if (error.empty()) error = CheckDType(call->stat_dtype, "stat_dtype");
  if (error.empty()) error = CheckView(call->view);
  if (!error.empty()) return error;
  if (!IsBelow(call->activation, kNumActivations)) {
    return "activation must be one of the TFBN_ activations";
  }
  if (call->activation == Activation::kLeakyRelu &&
      !std::isfinite(call->leakyrelu_alpha)) {
    return "leakyrelu_alpha must be finite";
  }
  for (int i = 0; i < kNumRoles; ++i) {
    const auto role = static_cast<Role>(i);
    if (IsMisaligned(ArrayOf(*call, role), DTypeOf(*call, role))) {
      return Misaligned(kRoles[i].name);
    }
  }
  return CheckArrays(*call);
}

std::string CheckGatherStats(const tfbn_gather_stats* args) {
  if (args == nullptr) return "args must not be NULL";
  if (args->parts < 0) return "parts must not be negative";
  if (args->channels < 0) return "channels must not be negative";
  const std::string error = CheckView(View{0, args->channels, 1});
  if (!error.empty()) return error;
  // CheckView would name fields that these arguments do not have.
  if (!CheckView(View{args->parts, args->channels, 1}).empty()) {
    return "parts * channels is larger than any memory";
  }
  const bool has_parts = args->parts > 0, has_channels = args->channels > 0;
  const struct {
    const char* name;
    const double* data;
    bool has_elements;
  } arrays[] = {{"counts", args->counts, has_parts},
                {"means", args->means, has_parts && has_channels},
                {"m2s", args->m2s, has_parts && has_channels},
                {"count", args->count, true},
                {"mean", args->mean, has_channels},
                {"m2", args->m2, has_channels}};
  for (const auto& array : arrays) {
    if (array.has_elements && array.data == nullptr) {
      return std::string(array.name) + " must not be NULL";
    }
    if (IsMisaligned(array.data, DType::kFloat64)) {
      return Misaligned(array.name);
    }
  }
  return "";
}

}  // namespace tf_bn_ops::c_api
