// One driver for all formulas.

#include "cc/core/reference.h"

#include <cmath>
#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/all_formulas.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/view.h"

namespace tf_bn_ops {
namespace {

// Neumaier's compensated sum, for float64 results that are right to the last
// bits.
class Sum {
 public:
  void Add(double term) {
    const double total = total_ + term;
    compensation_ += std::fabs(total_) >= std::fabs(term)
                         ? (total_ - total) + term
                         : (term - total) + total_;
    total_ = total;
  }
  double Value() const {
    // Infinities and NaN would turn the compensation into NaN; the plain total
    // is right then.
    return std::isfinite(total_) ? total_ + compensation_ : total_;
  }

 private:
  double total_ = 0;
  double compensation_ = 0;
};

// Calls f(element) with the index of each element of channel c.
template <typename Function>
void ForEachElement(const View& view, int64_t c, const Function& f) {
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t i = 0; i < view.inner; ++i) {
      f((o * view.channels + c) * view.inner + i);
    }
  }
}

template <typename F>
void LoadInputs(const typename F::Args& args, int64_t element,
                double (&in)[F::kInputs]) {
  const auto tensors = F::TensorsOf(args);
  for (int i = 0; i < F::kInputs; ++i) {
    in[i] = LoadAsDouble(args.dtype, tensors.in[i], element);
  }
}

// Sums of channel c, the first kSums of them.
template <typename F, int kSums>
void Reduce(const typename F::Args& args, int64_t c, double center,
            double (&sums)[F::kNumSums]) {
  if constexpr (kSums > 0) {
    double k[F::kNumCoefficients] = {};
    if constexpr (kHasMask<F>) F::FinishMask(args, c, k);
    Sum total[kSums];
    ForEachElement(args.view, c, [&](int64_t element) {
      double in[F::kInputs], terms[kSums] = {};
      LoadInputs<F>(args, element, in);
      if constexpr (kHasMask<F>) F::Mask(in, k);
      F::Accumulate(in, center, terms);
      for (int k = 0; k < kSums; ++k) total[k].Add(terms[k]);
    });
    for (int k = 0; k < kSums; ++k) sums[k] = total[k].Value();
  }
}

template <typename F, bool kTraining>
void RunMode(const typename F::Args& args) {
  const CenterArray centers = F::CentersOf(args);
  const auto tensors = F::TensorsOf(args);
  for (int64_t c = 0; c < args.view.channels; ++c) {
    const double center = CenterAt(centers, c);
    double sums[F::kNumSums] = {}, k[F::kNumCoefficients] = {};
    Reduce<F, kTraining ? F::kNumSums : F::kNumFrozenSums>(args, c, center,
                                                           sums);
    F::StoreSums(args, c, center, sums);
    if (tensors.out[0] == nullptr) continue;
    F::Finish(args, c, center, sums, k);
    if constexpr (kHasMask<F>) F::FinishMask(args, c, k);
    ForEachElement(args.view, c, [&](int64_t element) {
      double in[F::kInputs], out[F::kOutputs];
      LoadInputs<F>(args, element, in);
      F::template Element<kTraining>(in, k, out);
      for (int i = 0; i < F::kOutputs; ++i) {
        StoreFromDouble(args.dtype, tensors.out[i], element, out[i]);
      }
    });
  }
}

template <typename F>
void RunBothModes(const typename F::Args& args) {
  if constexpr (!kIsFrozenOnly<F>) {
    if (args.is_training) return RunMode<F, true>(args);
  }
  RunMode<F, false>(args);
}

}  // namespace

template <typename F>
void RunReference(const Call& args) {
  RunBothModes<F>(args);
}

// The forward of the reference is computed in double, not by coefficients of
// the compute type: the mask that agrees with it follows from y, or, without y,
// from the double that y is rounded from.
template <>
void RunReference<BatchNormGradExFormula>(const Call& args) {
  if (args.y == nullptr) return RunBothModes<BatchNormGradExFormula>(args);
  RunReference<BatchNormGradExFromYFormula>(args);
}

#define TFBN_INSTANTIATE(unused, F, name) \
  template void RunReference<F>(const Call&);
TFBN_FOR_EACH_FORMULA(TFBN_INSTANTIATE, )

}  // namespace tf_bn_ops
