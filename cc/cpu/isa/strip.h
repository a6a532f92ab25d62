// What the loop of a pass (pass.h) does with a row of a strip: elements are
// loaded, masked, added up by column, computed and stored.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/two_level_sum.h"
#include "cc/cpu/isa/columns.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// What a pass does: adds up the first kSums sums of F, and, unless the policy
// of its stores is kNone, computes the results in training, or frozen.
template <typename F, typename T, bool kTraining, int kSums, bool kStores>
struct PassOf {
  using Formula = F;
  using Element = T;
  static constexpr bool kIsTraining = kTraining;
  static constexpr int kNumSums = kSums;
  static constexpr bool kHasStores = kStores;
  // Coefficients from here on are read: by sums the mask's alone.
  static constexpr int kFirstCoefficient =
      !kStores    ? int{F::kFirstMaskCoefficient}
      : kTraining ? 0
                  : int{F::kFirstFrozenCoefficient};
  static constexpr bool kReadsCoefficients = kStores || kHasMask<F>;
};
// The first pass in training, and the second one.
template <typename F, typename T>
using ReduceOf = PassOf<ReductionOf<F>, T, true, F::kNumSums, false>;
template <typename F, typename T>
using ApplyOf = PassOf<F, T, !kHasOneElement<F>, 0, true>;
// The halves of a pass that sums and stores.
template <typename P>
using SumsOf =
    PassOf<typename P::Formula, typename P::Element, true, P::kNumSums, false>;
template <typename P>
using StoresOf =
    PassOf<typename P::Formula, typename P::Element, P::kIsTraining, 0, true>;

// ---- Vectors of a strip -----------------------------------------------------

// Vectors of a strip that sums: two vectors of double for one of float, or one
// chain, take half of the registers. A cache line where they allow it.
template <typename F, typename T>
constexpr int ReduceVectors() {
  constexpr int kValues = (kIsNarrow<T> ? 1 : 2) * F::kNumSums;
  constexpr int kMost = kRegisters / 2;
  constexpr bool kLineFits = kValues * kLineVectors<T> <= kMost;
  return std::max(VectorsPerStrip(kValues, kMost),
                  kLineFits ? kLineVectors<T> : 1);
}
// Vectors of a strip that stores alone: coefficients take three quarters of the
// registers, in whole cache lines unless one has more than four vectors; those
// that do not fit are on the stack. (Two vectors row by row instead of
// four: 1.1 to 1.5 times as slow in 16-bit types with AVX2, ADR 14.)
template <typename F, typename T>
constexpr int ApplyVectors() {
  constexpr int kFit = VectorsPerStrip(F::kNumCoefficients, kRegisters * 3 / 4);
  constexpr int kLine = kLineVectors<T>;
  if (kLine > 4) return kFit;
  return kFit < kLine ? kLine : kFit / kLine * kLine;
}
template <typename P>
constexpr int kVectorsOf =
    P::kNumSums > 0 ? ReduceVectors<typename P::Formula, typename P::Element>()
                    : ApplyVectors<typename P::Formula, typename P::Element>();

// Whether strips of kVectors vectors take one row each. Non-temporal stores of
// parts of a cache line go row by row, so that the line is complete soon:
// several rows and outputs have more lines begun than there are write-combining
// buffers (one row each is 3 times as fast in the second order of half).
template <typename T, int kVectors, StorePolicy kPolicy>
constexpr bool kRowByRow = kPolicy == StorePolicy::kNonTemporal &&
                           kVectors * kLanesOf<T> % kLineElements<T> != 0;

// Vectors of a pack in strips of kVectors. One where the coefficients of a mask
// alone are needed: bringing them to the order of packs takes what packs save
// (0.98 to 1.02 times as fast in bfloat16; without a mask 1.0 to 1.1, ADR 14).
template <typename P, StorePolicy kPolicy, int kVectors>
constexpr int kPackOf = (P::kNumSums > 0 && (kPolicy == StorePolicy::kNone) &&
                         kHasMask<typename P::Formula>)
                            ? 1
                            : kMostPacked<typename P::Element, kVectors>;

// ---- Elements ---------------------------------------------------------------

// Loads the coefficients of kVectors vectors of columns, in the order of packs.
template <typename P, int kPack, int kVectors, typename C, typename V>
TFBN_INLINE void LoadCoefficients(
    const ColumnCoefficients<C>& coefficients, int64_t column,
    V (&k)[kVectors][P::Formula::kNumCoefficients]) {
  if constexpr (P::kReadsCoefficients) {
    for (int i = P::kFirstCoefficient; i < P::Formula::kNumCoefficients; ++i) {
      for (int u = 0; u < kVectors; ++u) {
        k[u][i] = Load(coefficients.first + i * coefficients.stride + column +
                       u * kLanesOf<C>);
      }
    }
    Reorder<LaneOrder::kPacks, typename P::Element, kPack,
            P::kFirstCoefficient>(k);
  }
}

// Loads the pack of vectors that begins at `element` of each input; kPartial:
// the first `lanes` of one vector.
template <typename F, bool kPartial, int kPack, typename T, typename V>
TFBN_INLINE void LoadInputs(const TensorPointers<F, T>& tensors,
                            int64_t element, int lanes,
                            V (&in)[kPack][F::kInputs]) {
  for (int i = 0; i < F::kInputs; ++i) {
    const T* const from = tensors.in[i] + element;
    V pack[kPack];
    if constexpr (kPartial) {
      pack[0] = LoadPartial(from, lanes);
    } else {
      VectorPack<T, kPack>::Load(from, pack);
    }
    for (int g = 0; g < kPack; ++g) in[g][i] = pack[g];
  }
}

// Loads the same, masked.
template <typename F, bool kPartial, int kPack, typename T, typename V>
TFBN_INLINE void LoadMasked(const TensorPointers<F, T>& tensors,
                            int64_t element, int lanes,
                            const V (*k)[F::kNumCoefficients],
                            V (&in)[kPack][F::kInputs]) {
  LoadInputs<F, kPartial>(tensors, element, lanes, in);
  if constexpr (kHasMask<F>) {
    for (int g = 0; g < kPack; ++g) F::Mask(in[g], k[g]);
  }
}

// One vector of each input in double; masked before it is widened.
template <typename F, bool kPartial, typename T, typename V, typename Wide>
TFBN_INLINE void LoadInDouble(const TensorPointers<F, T>& tensors,
                              int64_t element, int lanes,
                              const V (*k)[F::kNumCoefficients],
                              Wide (&wide)[F::kInputs]) {
  if constexpr (kHasMask<F>) {
    V in[1][F::kInputs];
    LoadMasked<F, kPartial>(tensors, element, lanes, k, in);
    for (int i = 0; i < F::kInputs; ++i) wide[i] = Widen(in[0][i]);
  } else {
    for (int i = 0; i < F::kInputs; ++i) {
      const T* const from = tensors.in[i] + element;
      wide[i] = kPartial ? Widen(LoadPartial(from, lanes)) : LoadWide(from);
    }
  }
}

// Of kVectors vectors of results, how many are computed before they are stored,
// one output after the other: a cache line. Where two outputs have the same
// page offset and vectors of them are stored in turn, non-temporal stores of
// incomplete lines wait for each other: a line of each output in turn is 1.5 to
// 2.9 times as fast ([32, 256, 3136], AMD EPYC, ADR 14).
template <typename F, typename T, StorePolicy kPolicy, int kVectors>
constexpr int kStoredTogether =
    kPolicy == StorePolicy::kNonTemporal && F::kOutputs > 1 &&
            kVectors % kLineVectors<T> == 0
        ? kLineVectors<T>
        : 1;

// Computes and stores the results of kVectors vectors from `element` on. An
// output in place is stored temporally; if it is the only one, that is the
// policy (plan.cc).
template <typename P, StorePolicy kPolicy, int kVectors, bool kPartial,
          int kPack, typename Tensors, typename V>
TFBN_INLINE void StoreResults(const Tensors& tensors, int64_t element,
                              int lanes,
                              const V (*k)[P::Formula::kNumCoefficients]) {
  using F = typename P::Formula;
  using T = typename P::Element;
  using Pack = VectorPack<T, kPack>;
  constexpr int kStored = kStoredTogether<F, T, kPolicy, kVectors>;
  constexpr int kPacks = kStored < kPack ? 1 : kStored / kPack;
  constexpr int kElements = kPack * kLanesOf<T>;
  for (int first = 0; first < kVectors; first += kPacks * kPack) {
    const int64_t begin = element + first * kLanesOf<T>;
    typename Pack::Stored results[kPacks][F::kOutputs];
    for (int p = 0; p < kPacks; ++p) {
      V in[kPack][F::kInputs], out[kPack][F::kOutputs];
      LoadInputs<F, kPartial>(tensors, begin + p * kElements, lanes, in);
      for (int g = 0; g < kPack; ++g) {
        F::template Element<P::kIsTraining>(in[g], k[first + p * kPack + g],
                                            out[g]);
      }
      for (int i = 0; i < F::kOutputs; ++i) {
        V pack[kPack];
        for (int g = 0; g < kPack; ++g) pack[g] = out[g][i];
        results[p][i] = i == kPassedOnOutput<F> ? Pack::EncodePassedOn(pack)
                                                : Pack::Encode(pack);
      }
    }
    for (int i = 0; i < F::kOutputs; ++i) {
      for (int p = 0; p < kPacks; ++p) {
        T* const to = tensors.out[i] + begin + p * kElements;
        if (kPartial) {
          StorePartialBits(to, results[p][i], lanes);
        } else if (kPolicy == StorePolicy::kNonTemporal &&
                   (F::kOutputs == 1 || !tensors.in_place[i])) {
          StoreNonTemporalBits(to, results[p][i]);
        } else {
          StoreBits(to, results[p][i]);
        }
      }
    }
  }
}

// ---- Sums of a strip --------------------------------------------------------

// Vectors of double that hold the columns of kVectors vectors of elements.
template <typename T, int kVectors>
constexpr int kSumVectors = kVectors * kLanesOf<T> / kDoubleLanes;

template <typename T, int kSums, int kSumVectors>
TFBN_INLINE void LoadColumnSums(const ColumnSums<T, kSums>& columns,
                                const Strip& strip,
                                VD (&sum)[kSumVectors][kSums]) {
  for (int v = 0; v < kSumVectors; ++v) {
    for (int k = 0; k < kSums; ++k) {
      sum[v][k] = Load(columns.sum[k] + strip.column + v * kDoubleLanes);
    }
  }
}

// Sums behind the last column of a partial vector stay what they are.
template <bool kPartial, typename T, int kSums, int kSumVectors>
TFBN_INLINE void StoreColumnSums(const VD (&sum)[kSumVectors][kSums],
                                 const Strip& strip,
                                 ColumnSums<T, kSums>& columns) {
  for (int v = 0; v < kSumVectors; ++v) {
    const int left = strip.partial_lanes - v * kDoubleLanes;
    const int lanes = left < 0 ? 0 : left < kDoubleLanes ? left : kDoubleLanes;
    for (int k = 0; k < kSums; ++k) {
      double* const to = columns.sum[k] + strip.column + v * kDoubleLanes;
      if (kPartial) {
        StorePartial(to, sum[v][k], lanes);
      } else {
        Store(to, sum[v][k]);
      }
    }
  }
}

// The sums of a strip of a pass that sums nothing.
template <typename P, int kVectors, bool kPartial, int kPack>
struct NoSums {
  using Columns = ColumnSums<typename P::Element, 0>;
  TFBN_INLINE NoSums(const Columns&, const Strip&) {}
  template <typename... Any>
  TFBN_INLINE void Add(const Any&...) {}
  template <typename... Any>
  TFBN_INLINE void Finish(const Any&...) {}
};

// Sums in double, in registers for all rows of the strip.
template <typename P, int kVectors, bool kPartial, int kPack>
struct DoubleSums {
  using F = typename P::Formula;
  using T = typename P::Element;
  using Columns = ColumnSums<T, P::kNumSums>;
  using Wide = decltype(LoadWide(static_cast<const T*>(nullptr)));
  VD sum[kSumVectors<T, kVectors>][P::kNumSums];

  TFBN_INLINE DoubleSums(const Columns& columns, const Strip& strip) {
    LoadColumnSums(columns, strip, sum);
  }

  // Vector `u` of a row, which begins at `element`.
  template <typename Tensors, typename V>
  TFBN_INLINE void Add(const Tensors& tensors, const Columns& columns,
                       const Strip& strip, int64_t element, int u,
                       const V (*k)[F::kNumCoefficients]) {
    Wide wide[F::kInputs];
    LoadInDouble<F, kPartial>(tensors, element, strip.partial_lanes, k, wide);
    for (int p = 0; p < Wide::kParts; ++p) {
      VD in[F::kInputs];
      for (int i = 0; i < F::kInputs; ++i) in[i] = wide[i].part[p];
      const int v = u * Wide::kParts + p;
      F::Accumulate(in, Load(columns.center + strip.column + v * kDoubleLanes),
                    sum[v]);
    }
  }

  template <typename Tensors, typename Coefficients>
  TFBN_INLINE void Finish(const Tensors&, const Coefficients&,
                          const Strip& strip, Columns& columns) const {
    StoreColumnSums<kPartial>(sum, strip, columns);
  }
};

// Whether all lanes are finite.
template <int kVectors, int kSums>
TFBN_INLINE bool AllFinite(const VF (&chain)[kVectors][kSums]) {
  VU not_zero = {};
  for (int u = 0; u < kVectors; ++u) {
    for (int k = 0; k < kSums; ++k) {
      not_zero |= (VU)(chain[u][k] - chain[u][k]);
    }
  }
  uint64_t parts[kVectorBytes / sizeof(uint64_t)], any = 0;
  StoreBits(parts, not_zero);
  for (const uint64_t part : parts) any |= part;
  return any == 0;
}

// Adds up a chain of one vector of columns, from strip.column on, again, in
// double. The sums of columns that are finite in float stay those: which ones
// share a vector with one that is not depends on the ISA.
template <typename P, bool kPartial>
__attribute__((noinline)) void RepeatChain(
    const TensorPointers<typename P::Formula, typename P::Element>& tensors,
    const Strip& strip, const ColumnCoefficients<float>& coefficients,
    const float* centers, WideF (&chain)[P::kNumSums]) {
  using F = typename P::Formula;
  constexpr int kSums = P::kNumSums;
  const WideF center = Widen(Load(centers + strip.column));
  VF k[1][F::kNumCoefficients];
  LoadCoefficients<P, /*kPack=*/1>(coefficients, strip.column, k);
  WideF sum[kSums] = {};
  int64_t element = strip.first_element + strip.column;
  for (int64_t r = 0; r < strip.rows; ++r, element += strip.row_stride) {
    WideF wide[F::kInputs];
    LoadInDouble<F, kPartial>(tensors, element, strip.partial_lanes, k, wide);
    for (int p = 0; p < WideF::kParts; ++p) {
      VD in[F::kInputs], part[kSums];
      for (int i = 0; i < F::kInputs; ++i) in[i] = wide[i].part[p];
      for (int s = 0; s < kSums; ++s) part[s] = sum[s].part[p];
      F::Accumulate(in, center.part[p], part);
      for (int s = 0; s < kSums; ++s) sum[s].part[p] = part[s];
    }
  }
  for (int s = 0; s < kSums; ++s) {
    for (int p = 0; p < WideF::kParts; ++p) {
      const VD in_float = chain[s].part[p];
      chain[s].part[p] = in_float - in_float == 0 ? in_float : sum[s].part[p];
    }
  }
}

// Sums of narrow elements: a chain in float, which is then added to them.
template <typename P, int kVectors, bool kPartial, int kPack>
struct ChainSums {
  using F = typename P::Formula;
  using T = typename P::Element;
  static constexpr int kSums = P::kNumSums;
  using Columns = ColumnSums<T, kSums>;
  VF center[kVectors][1];
  VF chain[kVectors][kSums] = {};

  TFBN_INLINE ChainSums(const Columns& columns, const Strip& strip) {
    for (int u = 0; u < kVectors; ++u) {
      center[u][0] = Load(columns.center + strip.column + u * kLanesOf<T>);
    }
    Reorder<LaneOrder::kPacks, T, kPack, 0>(center);
  }

  template <typename Tensors, typename V>
  TFBN_INLINE void Add(const Tensors& tensors, const Columns&,
                       const Strip& strip, int64_t element, int u,
                       const V (*k)[F::kNumCoefficients]) {
    VF in[kPack][F::kInputs];
    LoadMasked<F, kPartial>(tensors, element, strip.partial_lanes, k, in);
    for (int g = 0; g < kPack; ++g) {
      F::Accumulate(in[g], center[u + g][0], chain[u + g]);
    }
  }

  template <typename Tensors>
  TFBN_INLINE void Finish(const Tensors& tensors,
                          const ColumnCoefficients<float>& coefficients,
                          const Strip& strip, Columns& columns) {
    Reorder<LaneOrder::kColumns, T, kPack, 0>(chain);
    VD sum[kSumVectors<T, kVectors>][kSums];
    LoadColumnSums(columns, strip, sum);
    const bool repeat = kChainMayOverflow<T> && !AllFinite(chain);
    for (int u = 0; u < kVectors; ++u) {
      WideF wide[kSums];
      for (int s = 0; s < kSums; ++s) wide[s] = Widen(chain[u][s]);
      if (repeat) {
        Strip vector = strip;
        vector.column += u * kLanesOf<T>;
        RepeatChain<P, kPartial>(tensors, vector, coefficients, columns.center,
                                 wide);
      }
      for (int s = 0; s < kSums; ++s) {
        for (int p = 0; p < WideF::kParts; ++p) {
          sum[u * WideF::kParts + p][s] += wide[s].part[p];
        }
      }
    }
    StoreColumnSums<kPartial>(sum, strip, columns);
  }
};

template <typename P, int kVectors, bool kPartial, int kPack>
using StripSums = std::conditional_t<
    P::kNumSums == 0, NoSums<P, kVectors, kPartial, kPack>,
    std::conditional_t<kIsNarrow<typename P::Element>,
                       ChainSums<P, kVectors, kPartial, kPack>,
                       DoubleSums<P, kVectors, kPartial, kPack>>>;

}  // namespace
}  // namespace tf_bn_ops
