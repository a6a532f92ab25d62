// Checks calls of the C ABI.

#include "cc/c_api/read_call.h"

#include <cstdint>
#include <initializer_list>

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

// The arrays that a call must have: a bit for each role, since a vector of them
// took one to two percent of the smallest calls (5 microseconds).
class Needed {
 public:
  void Add(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= 1u << static_cast<int>(role);
  }
  // About the first one that it lacks and that has elements.
  std::string Check(const tfbn_call& call) const {
    for (int i = 0; i < kNumRoles; ++i) {
      if ((bits_ >> i & 1) == 0) continue;
      const bool has_elements =
          kRoles[i].kind == ArrayKind::kView     ? NumElements(call.view) > 0
          : kRoles[i].kind == ArrayKind::kScalar ? true
                                                 : call.view.channels > 0;
      if (has_elements && ArrayOf(call, static_cast<Role>(i)) == nullptr) {
        return std::string(kRoles[i].name) + " must not be NULL";
      }
    }
    return "";
  }

 private:
  static_assert(kNumRoles <= 32);
  uint32_t bits_ = 0;
};

// Each says what the call must have, and why there is no such call.
std::string CheckForward(const tfbn_call& call, Needed* needed) {
  needed->Add({Role::kX});
  if (call.local_mean != nullptr || call.local_m2 != nullptr ||
      call.local_count != nullptr) {
    needed->Add({Role::kLocalMean, Role::kLocalM2, Role::kLocalCount});
    return call.is_training ? ""
                            : "is_training must not be 0 with local_mean, "
                              "local_m2 and local_count";
  }
  needed->Add({Role::kScale, Role::kOffset, Role::kY});
  if (!call.is_training || call.exponential_avg_factor != 1) {
    needed->Add({Role::kMean, Role::kVariance});
  }
  if (!call.float64_statistics) {
    needed->Add({Role::kBatchMean, Role::kBatchVariance, Role::kSavedMean,
                 Role::kSavedVariance});
  }
  return call.is_training && call.float64_statistics
             ? "float64_statistics must be 0 in training"
             : "";
}

std::string CheckGradient(const tfbn_call& call, Needed* needed) {
  const bool has_totals = call.sum_dy != nullptr || call.sum_dy_xmu != nullptr;
  const bool sums_alone = !has_totals && (call.local_sum_dy != nullptr ||
                                          call.local_sum_dy_xmu != nullptr);
  needed->Add(
      {Role::kYBackprop, Role::kX, Role::kScale, Role::kMean, Role::kVariance});
  if (has_totals) {
    needed->Add({Role::kSumDy, Role::kSumDyXmu, Role::kCount});
  } else {
    needed->Add({Role::kScaleBackprop, Role::kOffsetBackprop});
  }
  if (sums_alone) {
    needed->Add({Role::kLocalSumDy, Role::kLocalSumDyXmu});
  } else {
    needed->Add({Role::kXBackprop});
  }
  const bool adds = call.side_input_backprop != nullptr;
  if (IsSmooth(call.activation)) {
    needed->Add({Role::kOffset});
    if (adds) needed->Add({Role::kY});
  } else if (call.activation != Activation::kIdentity) {
    // The mask is from x where there is no y, but for a side input.
    const bool takes_y =
        adds || !(has_totals || sums_alone) || call.y != nullptr;
    needed->Add({takes_y ? Role::kY : Role::kOffset});
  }
  if (has_totals && call.is_training) {
    return "is_training must be 0 with sum_dy";
  }
  return sums_alone && !call.is_training
             ? "is_training must not be 0 with local_sum_dy"
             : "";
}

std::string CheckArrays(const tfbn_call& call) {
  Needed needed;
  std::string error;
  switch (call.formula) {
    case FormulaKind::kForward:
      error = CheckForward(call, &needed);
      break;
    case FormulaKind::kGradient:
      error = CheckGradient(call, &needed);
      break;
    case FormulaKind::kSecondOrder:
      needed.Add({Role::kXBackpropGrad, Role::kScaleBackpropGrad,
                  Role::kOffsetBackpropGrad, Role::kYBackprop, Role::kX,
                  Role::kScale, Role::kMean, Role::kVariance,
                  Role::kYBackpropGrad, Role::kXGrad, Role::kScaleGrad});
      if (call.float64_statistics) {
        error = "float64_statistics must be 0 in the second order";
      }
      break;
    default:
      error =
          "formula must be TFBN_FORWARD, TFBN_GRADIENT or TFBN_SECOND_ORDER";
  }
  return error.empty() ? needed.Check(call) : error;
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
  if (IsSmooth(call->activation)) {
    for (const Role role : {Role::kSumDy, Role::kSumDyXmu, Role::kLocalSumDy,
                            Role::kLocalSumDyXmu}) {
      if (ArrayOf(*call, role) != nullptr) {
        return std::string(kRoles[static_cast<int>(role)].name) +
               " must be NULL with a smooth activation";
      }
    }
  }
  error = CheckArrays(*call);
  if (!error.empty()) return error;
  for (int i = 0; i < kNumRoles; ++i) {
    const auto role = static_cast<Role>(i);
    if (IsMisaligned(ArrayOf(*call, role), DTypeOf(*call, role))) {
      return Misaligned(kRoles[i].name);
    }
  }
  return "";
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
