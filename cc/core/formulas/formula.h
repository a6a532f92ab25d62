// What a formula is, and the small pieces that formulas share.
//
// Every op of the family is two passes over the same view with another formula:
//
//   reduce  a few sums per channel over the inputs of view shape
//   finish  coefficients and small outputs per channel, in double
//   apply   outputs of view shape from inputs and coefficients, elementwise
//
// A formula stands once, in a file of this folder, as a struct of constants and
// static functions. The CPU kernels instantiate it with V = a SIMD vector, CUDA
// with V = float or double; drivers know tiles, threads and launches, not
// formulas.
//
//   struct Formula {
//     static constexpr FormulaKind kKind;
//     // Behind an activation whose gradient the formula masks; a smooth one.
//     static constexpr bool kMasks, kIsSmooth;
//     // Tensors of view shape, in the order of TensorsOf. Frozen, Apply reads
//     // only the first kNumFrozenInputs inputs; Reduce, the first
//     // kNumReduceInputs.
//     enum Input { ..., kInputs, kNumFrozenInputs, kNumReduceInputs };
//     enum Output { ..., kOutputs };
//     // Where an output is an input passed on, not computed: which.
//     static constexpr int kPassedOn;
//     enum Sum { ..., kNumSums, kNumFrozenSums };
//     // Frozen, those from kFirstFrozenCoefficient on are used. Those from
//     // kFirstMaskCoefficient on follow from the inputs of shape [channels]
//     // alone and are known before Reduce, which masks elements by them;
//     // kNumCoefficients: there is no mask.
//     enum Coefficient { ..., kNumCoefficients, kFirstFrozenCoefficient,
//                        kFirstMaskCoefficient };
//
//     static Tensors TensorsOf(const Call&);
//     // What the sums of a channel are centered at, see CenterArray.
//     static CenterArray CentersOf(const Call&);
//     // Reduce: adds the terms of one (vector of) element(s) to the first
//     // kSums sums: kNumSums in training, kNumFrozenSums frozen. Without
//     // frozen sums, the frozen pass is Apply alone.
//     template <typename V, int kSums>
//     static void Accumulate(const V (&in)[kInputs], V center,
//                            V (&sum)[kSums]);
//     // The sums over `count` elements around `center` from those around
//     // center + `shift`, see two_level_sum.h.
//     template <int kSums>
//     static void Recenter(double count, double shift, double (&sums)[kSums]);
//     // Where centers are elements: mean and variance by the sums.
//     static BatchStatistics StatisticsOf(const Call&, double center,
//                                         const double (&sums)[kNumSums]);
//     // Where there is a mask: applies it to the inputs of (a vector of)
//     // element(s) before Accumulate, in the type that Apply computes in, so
//     // that both passes mask alike; and computes its coefficients.
//     template <typename V>
//     static void Mask(V (&in)[kInputs], const V (&k)[kNumCoefficients]);
//     template <typename C>
//     static void FinishMask(const Call&, int64_t c,
//                            C (&k)[kNumCoefficients]);
//     // Finish: the coefficients of channel c before kFirstMaskCoefficient,
//     // computed in double and rounded to the type C that Apply computes in.
//     // Frozen, only those from kFirstFrozenCoefficient on are written, and no
//     // sum is read.
//     template <typename C>
//     static void Finish(const Call&, int64_t c, double center,
//                        const double (&sums)[kNumSums],
//                        C (&k)[kNumCoefficients]);
//     // Finish: stores the outputs of shape [channels]. Frozen, only the first
//     // kNumFrozenSums sums are read.
//     static void StoreSums(const Call&, int64_t c, double center,
//                           const double (&sums)[kNumSums]);
//     // The same for a channel without elements.
//     static void StoreEmpty(const Call&, int64_t c);
//     // Apply: the results of one (vector of) element(s). Frozen, coefficients
//     // before kFirstFrozenCoefficient are not read.
//     template <bool kTraining, typename V>
//     static void Element(const V (&in)[kInputs],
//                         const V (&k)[kNumCoefficients], V (&out)[kOutputs]);
//     // Where another formula, which is named here, has the same sums: its
//     // kernels compute them. And the instance whose Finish and StoreSums are
//     // taken: they do not depend on masks and side inputs.
//     using Reduction = ...;
//     using Finisher = ...;
//     // Where there is an early output: one that Reduce can store, and Apply
//     // reads in place of what it was computed from. The formulas of both
//     // passes: FirstPass has these sums, and its Element<false> is the early
//     // output; SecondPass computes the other one of SecondPassCall, whose
//     // input kEarlyInput is the early output. All coefficients have the same
//     // places in the three formulas.
//     using FirstPass, SecondPass = ...;
//     static constexpr int kEarlyInput = ...;
//     static Call SecondPassCall(const Call&);
//   };
//
// Where the output pointers of TensorsOf are nullptr, a call in training ends
// after Finish: it wants the sums alone. Where a call gives the sums
// (HasTotals) it is Apply alone.
//
// Accuracy that every backend promises: sums are accumulated in double or in
// two levels (two_level_sum.h), in an order that is a function of the view
// alone (partition.h), and rounded once to the output type. Outputs of view
// shape are evaluated in float (in double for float64) from coefficients
// computed in double; means are subtracted in two parts (Split).
//
// All functions are always inlined (TFBN_HD) and contain no lambdas, since
// translation units with different -m flags instantiate them. No multiplication
// is fused with an addition (mk/cxxflags.txt, mk/nvccflags.txt), so that every
// backend computes the same operations in the order in which they are written.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/core/op_calls.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// F::kPassedOn, or -1: its subnormals are not flushed on any ISA.
template <typename F, typename = void>
constexpr int kPassedOnOutput = -1;
template <typename F>
constexpr int kPassedOnOutput<F, std::void_t<decltype(F::kPassedOn)>> =
    F::kPassedOn;

// Whether what x is measured from is an element of the channel, not its mean.
template <typename F>
constexpr bool kCentersAreElements = F::kKind != FormulaKind::kGradient;

// Whether an op of the table makes calls of F, or of a part of it, with
// elements of T: others have no kernels.
template <typename F, typename T>
constexpr bool IsCalled(CallPart part, bool is_training) {
  constexpr Activation kLeast = F::kIsSmooth ? Activation{kNumClamps}
                                : F::kMasks  ? Activation::kRelu
                                             : Activation::kIdentity;
  // Nothing but the whole gradient has that of a side input and sums.
  if (part == CallPart::kSums && int{F::kOutputs} > 1) return false;
  return IsOpCall(F::kKind, part, FormatOf<T>::kDType, is_training, kLeast);
}

template <typename F>
constexpr bool kHasMask =
    int{F::kFirstMaskCoefficient} < int{F::kNumCoefficients};

// Whether results are computed frozen as in training, from the same
// coefficients: one kernel does both.
template <typename F>
constexpr bool kHasOneElement =
    F::kNumFrozenSums == 0 && F::kFirstFrozenCoefficient == 0;

// F::Reduction, or F.
template <typename F, typename = void>
struct ReductionOfFormula {
  using Type = F;
};
template <typename F>
struct ReductionOfFormula<F, std::void_t<typename F::Reduction>> {
  using Type = typename F::Reduction;
};
template <typename F>
using ReductionOf = typename ReductionOfFormula<F>::Type;

// Whether F has an early output.
template <typename F, typename = void>
constexpr bool kHasEarlyOutput = false;
template <typename F>
constexpr bool kHasEarlyOutput<F, std::void_t<typename F::FirstPass>> = true;

// The tensors of view shape; those behind the numbers of them are not used.
struct Tensors {
  int inputs, outputs;
  const void* in[3];
  void* out[2];
};

// Whether output `o` is the buffer of an input.
static TFBN_HD bool IsInPlace(const Tensors& tensors, int o) {
  bool in_place = false;
  for (int i = 0; i < tensors.inputs; ++i) {
    in_place |= tensors.in[i] == tensors.out[o];
  }
  return in_place && tensors.out[o] != nullptr;
}

// Whether a call computes outputs of view shape, not its sums alone.
template <typename F>
static TFBN_HD bool HasOutputs(const Call& call) {
  return F::TensorsOf(call).out[0] != nullptr;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

static TFBN_HD bool IsFinite(double value) { return value - value == 0; }

// The rows of forward_coefficients: what y was computed by, for the mask of an
// activation; mean and variance without what saved_mean and saved_variance
// lose; and what says whose they are. float holds every sqrt(variance +
// epsilon) of float elements, whose square may be beyond it.
enum ForwardCoefficientRow : int {
  kMeanRow,      // The mean has two parts, see Split, and
  kMeanRestRow,  // so has
  kScaleRstdRow,
  kDeviationRow,  // sqrt(variance + epsilon), and so has
  kDeviationRestRow,
  kSavedVarianceRow,
  kEpsilonRow,  // epsilon.
  kEpsilonRestRow,
  kForwardCoefficientRows,
};
constexpr int kNumForwardCoefficients = kForwardCoefficientRows;

// What the forward pass kept of mean and variance beside what a gradient is
// given: forward_coefficients, of `dtype`, rows `stride` apart; nullptr:
// nothing is kept. The mean that is given goes beside it.
struct KeptStatistics {
  DType dtype;
  const void* rows;
  int64_t stride;
  DType given_dtype;
  const void* variance;
  double epsilon;
};

static TFBN_HD double KeptAt(const KeptStatistics& kept, int row, int64_t c) {
  const int64_t at = row * kept.stride + c;
  return kept.dtype == DType::kFloat64
             ? static_cast<const double*>(kept.rows)[at]
             : static_cast<double>(static_cast<const float*>(kept.rows)[at]);
}

// Whether what is kept of channel c, in rows of C, is of the mean, variance and
// epsilon that are given: a caller may give others, which are taken as they are
// then. Vectorizes.
template <typename C>
static TFBN_HD bool IsKeptIn(const KeptStatistics& kept, double mean,
                             double variance, int64_t c) {
  const C* const row = static_cast<const C*>(kept.rows) + c;
  const auto epsilon = static_cast<C>(kept.epsilon);
  const auto rest = static_cast<C>(kept.epsilon - static_cast<double>(epsilon));
  const double given[] = {mean, variance, static_cast<double>(epsilon),
                          static_cast<double>(rest)};
  const int rows[] = {kMeanRow, kSavedVarianceRow, kEpsilonRow,
                      kEpsilonRestRow};
  bool equal = true;
  for (int i = 0; i < 4; ++i) {
    equal &= static_cast<double>(row[rows[i] * kept.stride]) == given[i];
  }
  return equal;
}
static TFBN_HD bool IsKept(const KeptStatistics& kept, double mean, int64_t c) {
  if (kept.rows == nullptr) return false;
  const double variance = LoadAsDouble(kept.given_dtype, kept.variance, c);
  return kept.dtype == DType::kFloat64
             ? IsKeptIn<double>(kept, mean, variance, c)
             : IsKeptIn<float>(kept, mean, variance, c);
}

// Centers of the channels; zero where data is nullptr. Either the mean of
// channel c, element c of `data` and the rest that is kept of it. Or, where
// there are `elements`, the median of three elements of channel c, at the
// indices elements[i] + c * stride, so that no single outlier is a center; an
// infinity or NaN, whose distance from others would be NaN, counts as zero.
struct CenterArray {
  DType dtype;
  const void* data;
  KeptStatistics kept;
  bool is_median;
  int64_t stride;
  int64_t elements[3];
};

static TFBN_HD CenterArray MeanCenters(DType dtype, const void* mean,
                                       const KeptStatistics& kept) {
  return {dtype, mean, kept, /*is_median=*/false, 0, {0, 0, 0}};
}

// Elements M/7, 3M/7 and 5M/7 of each channel, which seldom lie at the border
// of an image; x may be nullptr.
static TFBN_HD CenterArray MedianCenters(DType dtype, const void* x,
                                         const View& view) {
  CenterArray out = {dtype, x, {}, /*is_median=*/true, view.inner, {0, 0, 0}};
  if (x == nullptr || view.inner == 0) return out;
  const int64_t count = ElementsPerChannel(view);
  for (int i = 0; i < 3; ++i) {
    const int64_t element =
        count / 7 * (2 * i + 1) + count % 7 * (2 * i + 1) / 7;
    out.elements[i] = element / view.inner * view.channels * view.inner +
                      element % view.inner;
  }
  return out;
}

template <typename V>
static TFBN_HD V MedianOf(V a, V b, V c) {
  const V low = a < b ? a : b, high = a < b ? b : a;
  const V upper = high < c ? high : c;
  return low < upper ? upper : low;
}

static TFBN_HD double CenterAt(const CenterArray& centers, int64_t c) {
  if (centers.data == nullptr) return 0;
  if (centers.is_median) {
    double of[3];
    for (int i = 0; i < 3; ++i) {
      const double element =
          LoadAsDouble(centers.dtype, centers.data,
                       centers.elements[i] + c * centers.stride);
      of[i] = IsFinite(element) ? element : 0;
    }
    return MedianOf(of[0], of[1], of[2]);
  }
  const double center = LoadAsDouble(centers.dtype, centers.data, c);
  if (!IsKept(centers.kept, center, c)) return center;
  return center + KeptAt(centers.kept, kMeanRestRow, c);
}

// Adds the rests that IsKept allows to `n` means from channel `first` on.
template <typename C>
static TFBN_HD void AddKept(const KeptStatistics& kept, int64_t first,
                            int64_t n, double* means) {
  constexpr int64_t kAtOnce = 64;
  const C* const rests =
      static_cast<const C*>(kept.rows) + kMeanRestRow * kept.stride;
  double variance[kAtOnce];
  for (int64_t begin = 0; begin < n; begin += kAtOnce) {
    const int64_t count = n - begin < kAtOnce ? n - begin : kAtOnce;
    const int64_t c = first + begin;
    LoadAsDoubles(kept.given_dtype, kept.variance, c, count, variance);
    double* const mean = means + begin;
    for (int64_t i = 0; i < count; ++i) {
      // A mask instead of a branch, so that it vectorizes.
      const bool is_kept = IsKeptIn<C>(kept, mean[i], variance[i], c + i);
      const auto rest = BitCast<uint64_t>(static_cast<double>(rests[c + i])) &
                        -static_cast<uint64_t>(is_kept);
      mean[i] += BitCast<double>(rest);
    }
  }
}

// The centers of channels [first, first + n).
static TFBN_HD void LoadCenters(const CenterArray& centers, int64_t first,
                                int64_t n, double* out) {
  if (centers.data == nullptr || centers.is_median) {
    for (int64_t c = 0; c < n; ++c) out[c] = CenterAt(centers, first + c);
    return;
  }
  LoadAsDoubles(centers.dtype, centers.data, first, n, out);  // Vectorizes.
  if (centers.kept.rows != nullptr) {
    if (centers.kept.dtype == DType::kFloat64) {
      AddKept<double>(centers.kept, first, n, out);
    } else {
      AddKept<float>(centers.kept, first, n, out);
    }
  }
}

// Stores an output of shape [channels] that the caller may leave out.
static TFBN_HD void StoreIfWanted(DType dtype, void* data, int64_t c,
                                  double value) {
  if (data != nullptr) StoreFromDouble(dtype, data, c, value);
}

static TFBN_HD double DeviationOf(double variance, double epsilon) {
  return std::sqrt(variance + epsilon);
}
static TFBN_HD double RstdOf(double variance, double epsilon) {
  return 1.0 / DeviationOf(variance, epsilon);
}

// Mean and biased variance of a channel; the exact sum of mean and mean_rest is
// the mean.
struct BatchStatistics {
  double mean, mean_rest, variance;
};
// Statistics of `count` elements x, from the sums of xc = x - center and xc^2.
static TFBN_HD BatchStatistics ShiftedStatistics(int64_t count, double center,
                                                 double xc_sum,
                                                 double xc_xc_sum) {
  const double m = static_cast<double>(count);
  const double shift = xc_sum / m;
  BatchStatistics out;
  out.mean = center + shift;
  // What the addition rounded off (Knuth's TwoSum).
  const double shift_part = out.mean - center;
  out.mean_rest = (center - (out.mean - shift_part)) + (shift - shift_part);
  const double variance = xc_xc_sum / m - shift * shift;
  // Rounding may leave a variance of zero below it; NaN stays NaN.
  out.variance = variance < 0 ? 0 : variance;
  return out;
}

// `value` + `rest` as the sum of two numbers of a narrower type C. Subtracted
// one after the other they lose nothing to cancellation, also where a mean is
// large against the deviations from it.
template <typename C>
static TFBN_HD void Split(double value, double rest, C* part, C* part_rest) {
  *part = static_cast<C>(value);
  // Infinity minus infinity would be NaN where the value is a plain infinity.
  *part_rest = IsFinite(value)
                   ? static_cast<C>((value - static_cast<double>(*part)) + rest)
                   : C{0};
}

}  // namespace tf_bn_ops
