// The calls of the core, part by part of each formula, with arrays of their
// own: what the fuzz target of the C ABI and the test of many threads share.

#ifndef TF_BN_OPS_TESTS_FUZZ_CALL_ARRAYS_H_
#define TF_BN_OPS_TESTS_FUZZ_CALL_ARRAYS_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/formulas/forward.h"

namespace tf_bn_ops {
namespace fuzz {

template <typename... Roles>
constexpr uint32_t Bits(Roles... roles) {
  return (uint32_t{0} | ... | (uint32_t{1} << static_cast<int>(roles)));
}
static_assert(kNumRoles <= 32);

// A call of a formula, or of one pass of it: the arrays that it has, and those
// that it may have.
struct Part {
  FormulaKind formula;
  bool float64_statistics;
  // Sums and elements alone exist in one mode.
  bool trains, freezes;
  uint32_t roles, options;
};
constexpr uint32_t kBatch = Bits(Role::kX, Role::kScale, Role::kOffset,
                                 Role::kMean, Role::kVariance),
                   kDy = Bits(Role::kYBackprop);
constexpr Part kParts[] = {
    {FormulaKind::kForward, false, true, true,
     kBatch | Bits(Role::kY, Role::kBatchMean, Role::kBatchVariance,
                   Role::kSavedMean, Role::kSavedVariance),
     Bits(Role::kSideInput, Role::kForwardCoefficients)},
    {FormulaKind::kGradient, false, true, true,
     kDy | kBatch |
         Bits(Role::kXBackprop, Role::kScaleBackprop, Role::kOffsetBackprop),
     Bits(Role::kY, Role::kForwardCoefficients, Role::kSideInputBackprop)},
    {FormulaKind::kSecondOrder, false, true, true,
     kDy | kBatch |
         Bits(Role::kXBackpropGrad, Role::kScaleBackpropGrad,
              Role::kOffsetBackpropGrad, Role::kYBackpropGrad, Role::kXGrad,
              Role::kScaleGrad),
     0},
    {FormulaKind::kForward, false, true, false,
     Bits(Role::kX, Role::kLocalMean, Role::kLocalM2, Role::kLocalCount), 0},
    {FormulaKind::kForward, true, false, true, kBatch | Bits(Role::kY),
     Bits(Role::kSideInput)},
    {FormulaKind::kGradient, true, true, false,
     kDy | kBatch |
         Bits(Role::kScaleBackprop, Role::kOffsetBackprop, Role::kLocalSumDy,
              Role::kLocalSumDyXmu),
     Bits(Role::kY)},
    {FormulaKind::kGradient, true, false, true,
     kDy | kBatch |
         Bits(Role::kSumDy, Role::kSumDyXmu, Role::kCount, Role::kXBackprop),
     Bits(Role::kY, Role::kSideInputBackprop)},
};

// Whether the call writes to the array of a role.
inline bool IsOutput(const Call& call, Role role) {
  const bool of_forward =
      role == Role::kY || role == Role::kForwardCoefficients;
  return of_forward ? call.formula == FormulaKind::kForward
                    : static_cast<int>(role) >= kNumInputRoles;
}

inline int64_t CountOf(const Call& call, Role role) {
  switch (kRoles[static_cast<int>(role)].kind) {
    case ArrayKind::kView:
      return NumElements(call.view);
    case ArrayKind::kScalar:
      return 1;
    case ArrayKind::kCoefficients:
      return kNumForwardCoefficients * call.view.channels;
    default:
      return call.view.channels;
  }
}

// An allocation for each array, so that AddressSanitizer sees accesses outside.
class Arrays {
 public:
  // fill(bytes, count, dtype) for each array, outputs included, in the order of
  // the roles.
  template <typename Fill>
  Arrays(const Call& call, uint32_t roles, const Fill& fill) : roles_(roles) {
    ForEach([&](Role role) {
      const DType dtype = DTypeOf(call, role);
      const int64_t count = CountOf(call, role);
      // At least one byte, so that the pointer of an empty array is not NULL.
      Bytes(role).resize(1 + count * SizeOf(dtype));
      fill(Bytes(role).data(), count, dtype);
    });
  }

  // The call on these arrays.
  Call Of(Call call) {
    ForEach([&](Role role) { ArrayOf(call, role) = Bytes(role).data(); });
    return call;
  }

  std::vector<uint8_t>& Bytes(Role role) {
    return bytes_[static_cast<int>(role)];
  }

  // Changes what is to be overwritten.
  void SpoilOutputs(const Call& call) {
    ForEach([&](Role role) {
      if (!IsOutput(call, role)) return;
      for (uint8_t& byte : Bytes(role)) byte ^= 0x55;
    });
  }

  // Whether one call has written what the other has; NaN is any NaN.
  static bool AreEqual(const Call& call, const Call& other) {
    for (int r = 0; r < kNumRoles; ++r) {
      const auto role = static_cast<Role>(r);
      const void* const a = ArrayOf(call, role);
      const void* const b = ArrayOf(other, role);
      if (!IsOutput(call, role) || a == nullptr || b == nullptr) continue;
      const DType dtype = DTypeOf(call, role);
      for (int64_t i = 0; i < CountOf(call, role); ++i) {
        const double x = LoadAsDouble(dtype, a, i);
        const double y = LoadAsDouble(dtype, b, i);
        const bool same = std::memcmp(&x, &y, sizeof(x)) == 0;
        if (!same && !(x != x && y != y)) return false;
      }
    }
    return true;
  }

 private:
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (int i = 0; i < kNumRoles; ++i) {
      if (roles_ >> i & 1) visit(static_cast<Role>(i));
    }
  }

  uint32_t roles_;
  std::vector<uint8_t> bytes_[kNumRoles];
};

}  // namespace fuzz
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_TESTS_FUZZ_CALL_ARRAYS_H_
