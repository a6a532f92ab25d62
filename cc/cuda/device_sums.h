// The sums of a thread: two-level sums (cc/core/two_level_sum.h) over the items
// of its split, in double for float64.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_SUMS_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_SUMS_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device_loop.h"
#include "cc/cuda/device_vector.h"

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

// Adds the terms of the first kElements elements of a vector to `to`, computed
// in V: per column, or those of all elements, added up in a tree. kMasked: only
// elements [begin, end) are the thread's.
template <typename Formula, typename T, int kElements, bool kMasked, typename V,
          int kColumns, int kSums, int kCount, typename Coefficients>
TFBN_HD void AddTerms(const Words (&in)[kCount], int begin, int end,
                      const Coefficients& known, V (&to)[kColumns][kSums]) {
  V terms[kElements][kSums];
  TFBN_UNROLL
  for (int e = 0; e < kElements; ++e) {
    V from[Formula::kInputs];
    LoadTerms<Formula, T>(in, e, known, from);
    // The identity of addition: -0.0 + term is bitwise the term, so the
    // compiler folds the addition.
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[e][s] = V(-0.0);
    Formula::Accumulate(from, static_cast<V>(known.Center(e)), terms[e]);
    if constexpr (kMasked) {
      const bool own = e >= begin && e < end;
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) terms[e][s] = own ? terms[e][s] : V(0);
    }
  }
  if constexpr (kColumns < kElements) {
    TFBN_UNROLL
    for (int n = kElements / 2; n > 0; n /= 2) {
      TFBN_UNROLL
      for (int e = 0; e < n; ++e) {
        TFBN_UNROLL
        for (int s = 0; s < kSums; ++s) terms[e][s] += terms[e + n][s];
      }
    }
  }
  TFBN_UNROLL
  for (int e = 0; e < kColumns; ++e) {
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) to[e][s] += terms[e][s];
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
  // otherwise so many items that it has kTwoLevelRun terms.
  static constexpr int kRunItems =
      kChannelsLast ? kTwoLevelRun : kTwoLevelRun / VectorTraits<T>::kVector;
  static constexpr int kElements =
      kChannelsLast ? kColumns : VectorTraits<T>::kVector;
  static constexpr bool kMayOverflow = kTwoLevels && kRunMayOverflow<T>;
  // Many double sums that change once per group stay in shared memory rather
  // than in registers, of which loads need as many.
  static constexpr bool kInShared = kTwoLevels && kChannelsLast;

  TFBN_HD ThreadSums(SharedSums& shared, int thread)
      : shared_(shared), thread_(thread) {
    if constexpr (kInShared) StoreTotals();
  }

  TFBN_HD void BeginGroup() {
    if constexpr (kMayOverflow && !kInShared) {
      range_ = 0;
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) before_[s] = sums_[0][s];
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
      if (!kInShared && (i + 1) % kRunItems == 0) EndRun();
    } else if (present) {
      AddTerms<Formula, T, kElements, kMasked>(in, begin, end, known, sums_);
    }
  }

  // `items` of the group were added. False if the float32 sum of a run is not
  // finite: the group is to be added again, by AddAgain.
  TFBN_HD bool EndGroup(int items) {
    if constexpr (kInShared) {
      if (kMayOverflow && !IsInRange(RangeOfRuns())) {
        TFBN_UNROLL
        for (int e = 0; e < kColumns; ++e) {
          TFBN_UNROLL
          for (int s = 0; s < kSums; ++s) run_[e][s] = 0;
        }
        return false;
      }
      EndRun();
    } else if constexpr (kTwoLevels) {
      if (items % kRunItems != 0) EndRun();
      if (kMayOverflow && !IsInRange(range_)) {
        TFBN_UNROLL
        for (int s = 0; s < kSums; ++s) sums_[0][s] = before_[s];
        return false;
      }
    }
    return true;
  }

  template <int kCount, typename Coefficients>
  TFBN_HD void AddAgain(int begin, int end, const Words (&in)[kCount],
                        const Coefficients& known) {
    if constexpr (kInShared) {
      double sums[kColumns][kSums] = {};
      AddTerms<Formula, T, kElements, true>(in, begin, end, known, sums);
      TFBN_UNROLL
      for (int e = 0; e < kColumns; ++e) {
        TFBN_UNROLL
        for (int s = 0; s < kSums; ++s) Shared(e, s) += sums[e][s];
      }
    } else {
      AddTerms<Formula, T, kElements, true>(in, begin, end, known, sums_);
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
  static TFBN_HD bool IsInRange(float range) {
    return range <= 0x1.fffffep127f;
  }

  TFBN_HD void EndRun() {
    if constexpr (kMayOverflow && !kInShared) range_ += RangeOfRuns();
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        const double run = static_cast<double>(run_[e][s]);
        if constexpr (kInShared) {
          Shared(e, s) += run;
        } else {
          sums_[e][s] += run;
        }
        run_[e][s] = 0;
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

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_SUMS_H_
