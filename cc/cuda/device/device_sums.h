// The sums of a thread: two-level sums (cc/core/two_level_sum.h) over the items
// of its split, in double for float64.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_SUMS_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_SUMS_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device/device_loop.h"
#include "cc/cuda/device/device_vector.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Of `known`: Center(e) and Load(e, k) are the center and the coefficients of
// element `e` of a vector.

// The inputs of one element, masked where the formula has a mask, in V.
template <typename Formula, typename T, typename V, int kCount,
          typename Coefficients>
TFBN_HD void LoadTerms(const Words (&in)[kCount], int e,
                       const Coefficients& known, V (&from)[Formula::kInputs]) {
  Compute<T> values[Formula::kInputs] = {};
  TFBN_UNROLL
  for (int i = 0; i < kCount; ++i) {
    values[i] = static_cast<Compute<T>>(ToDouble(ElementOf<T>(in[i], e)));
  }
  if constexpr (kHasMask<Formula>) {
    Compute<T> k[Formula::kNumCoefficients];
    known.Load(e, k);
    Formula::Mask(values, k);
  }
  TFBN_UNROLL
  for (int i = 0; i < Formula::kInputs; ++i)
    from[i] = static_cast<V>(values[i]);
}

// The terms of element `e` of a vector, computed in V. kMasked: zero unless it
// is one of [begin, end).
template <typename Formula, typename T, bool kMasked, typename V, int kSums,
          int kCount, typename Coefficients>
TFBN_HD void TermsOf(const Words (&in)[kCount], int e, int begin, int end,
                     const Coefficients& known, V (&terms)[kSums]) {
  V from[Formula::kInputs];
  LoadTerms<Formula, T>(in, e, known, from);
  // The identity of addition: -0.0 + term is bitwise the term, so the compiler
  // folds the addition.
  TFBN_UNROLL
  for (int s = 0; s < kSums; ++s) terms[s] = V(-0.0);
  Formula::Accumulate(from, static_cast<V>(known.Center(e)), terms);
  if constexpr (kMasked) {
    const bool own = e >= begin && e < end;
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[s] = own ? terms[s] : V(0);
  }
}

// The sums of the terms of elements kFirst, kFirst + kStep, ... of a vector, as
// a tree: an addition per level in the chain of sums, and few terms at a time.
template <typename Formula, typename T, int kFirst, int kStep, bool kMasked,
          typename V, int kSums, int kCount, typename Coefficients>
TFBN_HD void TreeOfTerms(const Words (&in)[kCount], int begin, int end,
                         const Coefficients& known, V (&terms)[kSums]) {
  if constexpr (kStep == VectorTraits<T>::kVector) {
    TermsOf<Formula, T, kMasked>(in, kFirst, begin, end, known, terms);
  } else {
    V others[kSums];
    TreeOfTerms<Formula, T, kFirst, 2 * kStep, kMasked>(in, begin, end, known,
                                                        terms);
    TreeOfTerms<Formula, T, kFirst + kStep, 2 * kStep, kMasked>(in, begin, end,
                                                                known, others);
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[s] += others[s];
  }
}

// Adds the terms of the first kElements elements of a vector to `to`: per
// column, or those of all elements. kMasked: only elements [begin, end) are the
// thread's.
template <typename Formula, typename T, int kElements, bool kMasked, typename V,
          int kColumns, int kSums, int kCount, typename Coefficients>
TFBN_HD void AddTerms(const Words (&in)[kCount], int begin, int end,
                      const Coefficients& known, V (&to)[kColumns][kSums]) {
  TFBN_UNROLL
  for (int e = 0; e < kColumns; ++e) {
    V terms[kSums];
    if constexpr (kColumns < kElements) {
      TreeOfTerms<Formula, T, 0, 1, kMasked>(in, begin, end, known, terms);
    } else {
      TermsOf<Formula, T, kMasked>(in, e, begin, end, known, terms);
    }
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) to[e][s] += terms[s];
  }
}

// Sum s of column e of thread t is element [s * kColumns + e][t] of an array in
// shared memory.
template <typename Formula, typename T, bool kChannelsLast, int kColumns,
          int kSums>
class ThreadSums {
 public:
  using SharedSums = double[kSums * kColumns][kThreads];
  static constexpr bool kTwoLevels = !std::is_same_v<T, double>;
  // A run spans a group where a vector has a term for each of its columns, and
  // otherwise so many items that it has kTwoLevelRun terms. (A vector of more,
  // of elements of one byte, is a run: its tree is 4 additions high, fewer than
  // the chain of a run.)
  static constexpr int kRunItems = kChannelsLast ? kTwoLevelRun
                                   : VectorTraits<T>::kVector < kTwoLevelRun
                                       ? kTwoLevelRun / VectorTraits<T>::kVector
                                       : 1;
  static constexpr int kElements =
      kChannelsLast ? kColumns : VectorTraits<T>::kVector;
  static constexpr bool kMayOverflow = kTwoLevels && kRunMayOverflow<T>;
  // Many double sums that change once per group stay in shared memory rather
  // than in registers, of which loads need as many.
  static constexpr bool kInShared = kTwoLevels && (kChannelsLast || kSums > 2);

  TFBN_HD ThreadSums(SharedSums& shared, int thread)
      : shared_(shared), thread_(thread) {
    if constexpr (kInShared) StoreTotals();
  }

  TFBN_HD void BeginGroup() {
    if constexpr (kTwoLevels && !kChannelsLast) {
      range_ = 0;
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        if constexpr (kInShared) {
          sums_[0][s] = 0;
        } else if constexpr (kMayOverflow) {
          before_[s] = sums_[0][s];
        }
      }
    }
  }

  // Item `i` of the group.
  template <bool kMasked, int kCount, typename Coefficients>
  TFBN_HD void Add(int i, bool present, int begin, int end,
                   const Words (&in)[kCount], const Coefficients& known) {
    if constexpr (kTwoLevels) {
      if (present) {
        AddTerms<Formula, T, kElements, kMasked>(in, begin, end, known, run_);
      }
      if (!kChannelsLast && (i + 1) % kRunItems == 0) EndRun(sums_);
    } else if (present) {
      AddTerms<Formula, T, kElements, kMasked>(in, begin, end, known, sums_);
    }
  }

  // `items` of the group were added. False if the float32 sum of a run is not
  // finite: the group is to be added again, by AddAgain.
  TFBN_HD bool EndGroup(int items) {
    if constexpr (kTwoLevels) {
      if (kChannelsLast) range_ = RangeOfRuns();
      if (!kChannelsLast && items % kRunItems != 0) EndRun(sums_);
      if (kMayOverflow && !(range_ <= 0x1.fffffep127f)) {
        Discard();
        return false;
      }
      if (kChannelsLast) EndRunInShared();
      if (!kChannelsLast && kInShared) AddToShared(sums_);
    }
    return true;
  }

  // Columns: elements [begin, end) of a vector; otherwise its first element.
  template <int kCount, typename Coefficients>
  TFBN_HD void AddAgain(int begin, int end, const Words (&in)[kCount],
                        const Coefficients& known) {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      double terms[kSums];
      TermsOf<Formula, T, kChannelsLast>(in, e, begin, end, known, terms);
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        if constexpr (kInShared) {
          Shared(e, s) += terms[s];
        } else {
          sums_[e][s] += terms[s];
        }
      }
    }
  }

  // Leaves the sums in shared memory.
  TFBN_HD void Finish() {
    if constexpr (!kInShared) StoreTotals();
  }

 private:
  TFBN_HD double& Shared(int e, int s) {
    return shared_[s * kColumns + e][thread_];
  }
  TFBN_HD void StoreTotals() {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) Shared(e, s) = sums_[e][s];
    }
  }

  TFBN_HD void AddToShared(const double (&sums)[kColumns][kSums]) {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) Shared(e, s) += sums[e][s];
    }
  }

  // Finite if all runs are.
  TFBN_HD float RangeOfRuns() const {
    float range = 0;
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        range += run_[e][s] < 0 ? -run_[e][s] : run_[e][s];
      }
    }
    return range;
  }

  TFBN_HD void EndRun(double (&sums)[kColumns][kSums]) {
    if constexpr (kMayOverflow) range_ += RangeOfRuns();
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) {
      sums[0][s] += static_cast<double>(run_[0][s]);
      run_[0][s] = 0;
    }
  }
  // Volatile: column by column, as all columns at once do not fit into
  // registers.
  TFBN_HD void EndRunInShared() {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      double total[kSums];
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        total[s] = *static_cast<volatile double*>(&Shared(e, s));
      }
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        total[s] += static_cast<double>(run_[e][s]);
        *static_cast<volatile double*>(&Shared(e, s)) = total[s];
        run_[e][s] = 0;
      }
    }
  }
  // Leaves the sums as they were before the group.
  TFBN_HD void Discard() {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        if (kChannelsLast) run_[e][s] = 0;
        if (!kInShared) sums_[e][s] = before_[s];
      }
    }
  }

  SharedSums& shared_;
  const int thread_;
  double sums_[kColumns][kSums] = {};
  double before_[kSums] = {};  // Of the one column.
  float run_[kColumns][kSums] = {};
  float range_ = 0;  // Of the group: sum of the magnitudes of its runs.
};

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_SUMS_H_
