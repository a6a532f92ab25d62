// One pass over a tile: for each row the inputs are loaded, masked, added up by
// column, and the results computed and stored; a pass leaves out the sums or
// the results. All kernels of a formula but the pipeline are this loop.
//
// Column-wise accumulation: each column of a row has sums of its own, so that
// the order of additions does not depend on the width of a vector, and no
// multiplication is fused with an addition. All builds are bitwise identical.
// Sums are kept in double; narrow elements are added up in chains of float32
// first (two_level_sum.h), whose rows begin at a multiple of kTwoLevelChain.
// That halves the instructions of a pass which is compute-bound where float32
// waits for memory (ADR 29).

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/core/two_level_sum.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"
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
// Of one that stores alone: coefficients take three quarters of the registers,
// in whole cache lines unless one has more than four vectors; those that do not
// fit are on the stack. (Two vectors row by row instead of four: 1.1 to 1.5
// times as slow in 16-bit types with AVX2, ADR 14.)
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

// Whether the rows of a panel are taken one by one because of where they lie.
// Not where a vector is a cache line: with AVX-512 strips of several rows are
// 1.1 to 1.7 times as fast ([6272, 1024, 1] in float32, ADR 14).
template <typename T, StorePolicy kPolicy>
TFBN_INLINE bool HasAliasedRows(const Panel& panel) {
  constexpr int64_t kBytes = sizeof(T);
  return kPolicy == StorePolicy::kNonTemporal && !kVectorIsLine &&
         ShareAPageOffset(panel.row_stride * kBytes, kIsNarrow<T>);
}

// Rows of the strips of a panel.
template <typename P, StorePolicy kPolicy>
TFBN_INLINE StripRows StripRowsOf([[maybe_unused]] const Panel& panel) {
  using T = typename P::Element;
  if constexpr (P::kNumSums > 0) {
    return kIsNarrow<T>
               ? StripRows{kTwoLevelChain, kMaxRowsPerStrip, kTwoLevelChain}
               : StripRows{/*least=*/2};
  } else {
    if (kRowByRow<T, kVectorsOf<P>, kPolicy> ||
        HasAliasedRows<T, kPolicy>(panel)) {
      return {/*least=*/1, /*most=*/1};
    }
    const bool few = kPolicy == StorePolicy::kNonTemporal && !kIsNarrow<T>;
    return {/*least=*/2, /*most=*/few ? kMaxStoringRows : kMaxRowsPerStrip};
  }
}

// ---- Elements ---------------------------------------------------------------

// From the values of one kind of all columns of a row to the next kind's.
constexpr int64_t kColumnStride = kMaxRowColumns + kColumnPadding;

// Coefficient i of column c is first[i * stride + c].
template <typename T>
using CoefficientOf = typename Compute<T>::Scalar;
template <typename C>
struct ColumnCoefficients {
  const C* first;
  int64_t stride;
};

// The center and the sums of each column, behind one base pointer: half is 1.05
// to 1.1 times as fast as with a pointer for each, which spill.
template <typename T, int kSums>
struct ColumnSums {
  alignas(kCacheLineBytes) TermOf<T> center[kColumnStride];
  alignas(kCacheLineBytes) double sum[kSums][kColumnStride];
};
template <typename T>
struct ColumnSums<T, 0> {};

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
// the first `lanes` of one.
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

// The same, masked.
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
TFBN_INLINE void LoadSums(const ColumnSums<T, kSums>& columns,
                          const Strip& strip, VD (&sum)[kSumVectors][kSums]) {
  for (int v = 0; v < kSumVectors; ++v) {
    for (int k = 0; k < kSums; ++k) {
      sum[v][k] = Load(columns.sum[k] + strip.column + v * kDoubleLanes);
    }
  }
}

// Sums behind the last column of a partial vector stay what they are.
template <bool kPartial, typename T, int kSums, int kSumVectors>
TFBN_INLINE void StoreSums(const VD (&sum)[kSumVectors][kSums],
                           const Strip& strip, ColumnSums<T, kSums>& columns) {
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

// Of a pass that sums nothing.
template <typename P, int kVectors, bool kPartial, int kPack>
struct NoSums {
  using Columns = ColumnSums<typename P::Element, 0>;
  TFBN_INLINE NoSums(const Columns&, const Strip&) {}
  template <typename... Any>
  TFBN_INLINE void Add(const Any&...) {}
  template <typename... Any>
  TFBN_INLINE void Finish(const Any&...) {}
};

// In double, in registers for all rows of the strip.
template <typename P, int kVectors, bool kPartial, int kPack>
struct DoubleSums {
  using F = typename P::Formula;
  using T = typename P::Element;
  using Columns = ColumnSums<T, P::kNumSums>;
  using Wide = decltype(LoadWide(static_cast<const T*>(nullptr)));
  VD sum[kSumVectors<T, kVectors>][P::kNumSums];

  TFBN_INLINE DoubleSums(const Columns& columns, const Strip& strip) {
    LoadSums(columns, strip, sum);
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
    StoreSums<kPartial>(sum, strip, columns);
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

// Of narrow elements: a chain in float, which is then added to the sums.
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
    LoadSums(columns, strip, sum);
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
    StoreSums<kPartial>(sum, strip, columns);
  }
};

template <typename P, int kVectors, bool kPartial, int kPack>
using StripSums = std::conditional_t<
    P::kNumSums == 0, NoSums<P, kVectors, kPartial, kPack>,
    std::conditional_t<kIsNarrow<typename P::Element>,
                       ChainSums<P, kVectors, kPartial, kPack>,
                       DoubleSums<P, kVectors, kPartial, kPack>>>;

// ---- The loop ---------------------------------------------------------------

// The tensors of a strip: a copy, which no store can change, so that pointers
// stay in registers. No copy where a vector is a cache line: without one the
// gradient of [100352, 64, 1] in float32 is 1.07 times as fast, and the frozen
// forward of [32, 256, 3136] 1.12 times (AMD EPYC, AVX-512).
template <typename F, typename T>
using StripTensors =
    std::conditional_t<kVectorIsLine, const TensorPointers<F, T>&,
                       const TensorPointers<F, T>>;

// Takes a strip of kVectors vectors, or of one that is partial, in packs.
template <typename P, StorePolicy kPolicy, int kVectors, bool kPartial,
          int kPack, typename F, typename T>
TFBN_INLINE void TakeStrip(
    const TensorPointers<F, T>& given, const Strip& strip,
    const ColumnCoefficients<CoefficientOf<T>>& coefficients,
    ColumnSums<T, P::kNumSums>& columns) {
  constexpr bool kStores = kPolicy != StorePolicy::kNone;
  // A chain that is added up again reads what may lie in the buffer of a
  // result.
  constexpr bool kStoresLast =
      kStores && P::kNumSums > 0 && kIsNarrow<T> && kChainMayOverflow<T>;
  constexpr bool kStoresByRow =
      P::kNumSums == 0 || kStoredTogether<F, T, kPolicy, kVectors> > 1;
  constexpr int64_t kChain = P::kNumSums > 0 && kIsNarrow<T>
                                 ? int64_t{kTwoLevelChain}
                                 : std::numeric_limits<int64_t>::max();
  StripTensors<F, T> tensors = given;
  VectorOf<T> k[kVectors][F::kNumCoefficients];
  LoadCoefficients<P, kPack>(coefficients, strip.column, k);
  Strip chain = strip;
  for (int64_t left = strip.rows; left > 0; left -= chain.rows) {
    chain.rows = std::min(left, kChain);
    StripSums<P, kVectors, kPartial, kPack> sums(columns, strip);
    int64_t element = chain.first_element + strip.column;
    for (int64_t r = 0; r < chain.rows; ++r, element += strip.row_stride) {
      PrefetchRow<kVectors, !kStores>(tensors, strip, element);
      for (int u = 0; u < kVectors; u += kPack) {
        const int64_t first = element + u * kLanesOf<T>;
        sums.Add(tensors, columns, strip, first, u, k + u);
        if constexpr (kStores && !kStoresLast && !kStoresByRow) {
          StoreResults<P, kPolicy, kPack, kPartial, kPack>(
              tensors, first, strip.partial_lanes, k + u);
        }
      }
      if constexpr (kStores && !kStoresLast && kStoresByRow) {
        StoreResults<P, kPolicy, kVectors, kPartial, kPack>(
            tensors, element, strip.partial_lanes, k);
      }
    }
    sums.Finish(tensors, coefficients, chain, columns);
    if constexpr (kStoresLast) {
      element = chain.first_element + strip.column;
      for (int64_t r = 0; r < chain.rows; ++r, element += strip.row_stride) {
        StoreResults<P, kPolicy, kVectors, kPartial, kPack>(
            tensors, element, strip.partial_lanes, k);
      }
    }
    chain.first_element += chain.rows * strip.row_stride;
  }
}

// Vectors of a pack in strips of kVectors. One where the coefficients of a mask
// alone are needed: bringing them to the order of packs takes what packs save
// (0.98 to 1.02 times as fast in bfloat16; without a mask 1.0 to 1.1, ADR 14).
template <typename P, StorePolicy kPolicy, int kVectors, bool kPartial>
constexpr int kPackOf =
    P::kNumSums > 0 &&
            (!kIsNarrow<typename P::Element> ||
             (kPolicy == StorePolicy::kNone && kHasMask<typename P::Formula>))
        ? 1
        : kMostPacked<typename P::Element, kVectors, kPartial>;

// All strips of a panel, in packs of at most kMaxPack vectors.
template <typename P, StorePolicy kPolicy, int kMaxPack, typename F, typename T>
void TakeStrips(const TensorPointers<F, T>& tensors, const Panel& panel,
                const ColumnCoefficients<CoefficientOf<T>>& coefficients,
                ColumnSums<T, P::kNumSums>& columns) {
  constexpr int kVectors = kVectorsOf<P>;
  // Non-temporal stores have whole cache lines (ForEachStorePart).
  constexpr bool kWholeLines = kPolicy == StorePolicy::kNonTemporal;
  ForEachStrip<T, kVectors, kWholeLines>(
      panel, StripRowsOf<P, kPolicy>(panel),
      [&](auto vectors, auto partial, const Strip& strip)
          __attribute__((always_inline)) {
            constexpr int kStrip = decltype(vectors)::value;
            constexpr bool kPartial = decltype(partial)::value;
            constexpr int kPack =
                std::min(kMaxPack, kPackOf<P, kPolicy, kStrip, kPartial>);
            TakeStrip<P, kPolicy, kStrip, kPartial, kPack>(
                tensors, strip, coefficients, columns);
          });
}

template <typename P, StorePolicy kPolicy, typename F, typename T>
TFBN_INLINE void TakeStrips(
    const TensorPointers<F, T>& tensors, const Panel& panel,
    const ColumnCoefficients<CoefficientOf<T>>& coefficients,
    ColumnSums<T, P::kNumSums>& columns) {
  constexpr int kVectors = kVectorsOf<P>;
  constexpr int kPack = kPackOf<P, kPolicy, kVectors, false>;
  if constexpr (kPack > 1 && P::kNumSums == 0) {
    const int64_t rows =
        RowsPerStrip<T, kVectors>(panel, StripRowsOf<P, kPolicy>(panel));
    if (std::min(rows, panel.rows) < kLeastPackedRows) {
      return TakeStrips<P, kPolicy, 1>(tensors, panel, coefficients, columns);
    }
  }
  TakeStrips<P, kPolicy, kPack>(tensors, panel, coefficients, columns);
}

// ---- Channels ---------------------------------------------------------------

// Writes what the columns of `channels` channels, each of `per_channel`
// columns, are measured from. Out of line: it would be an eighth of the code of
// a pass. kElements: centers are elements, which a chain's type holds.
template <typename T, bool kElements>
__attribute__((noinline)) void SetCenters(const double* centers,
                                          int64_t channels, int64_t per_channel,
                                          TermOf<T>* columns) {
  const auto rounded = [](double center) {
    return static_cast<TermOf<T>>(kIsNarrow<T> && !kElements
                                      ? ChainCenter(FormatOf<T>::kDType, center)
                                      : center);
  };
  if (per_channel == 1) {  // In a loop that vectorizes.
    for (int64_t c = 0; c < channels; ++c) columns[c] = rounded(centers[c]);
    return;
  }
  for (int64_t c = 0; c < channels; ++c) {
    const TermOf<T> center = rounded(centers[c]);
    SpreadChannels(&center, 1, per_channel, columns + c * per_channel);
  }
}

// Adds up `n` neighbouring columns in interleaved chains: short chains for
// speed, a fixed number of them so that all builds are bitwise identical.
double AddColumns(const double* column, int64_t n) {
  static_assert(kColumnChains == 8);
  double chain[kColumnChains] = {};
  const int64_t whole = n / kColumnChains * kColumnChains;
  for (int64_t i = 0; i < whole; i += kColumnChains) {
    for (int j = 0; j < kColumnChains; ++j) chain[j] += column[i + j];
  }
  for (int64_t i = whole; i < n; ++i) chain[i - whole] += column[i];
  return ((chain[0] + chain[1]) + (chain[2] + chain[3])) +
         ((chain[4] + chain[5]) + (chain[6] + chain[7]));
}

// Adds the columns of `channels` channels, each `per_channel` neighbours, to
// their sums.
inline void AddToChannels(const double* columns, int64_t channels,
                          int64_t per_channel, double* sums) {
  if (per_channel == 1) {  // The same, in a loop that vectorizes.
    for (int64_t c = 0; c < channels; ++c) sums[c] += columns[c];
    return;
  }
  for (int64_t c = 0; c < channels; ++c) {
    sums[c] += AddColumns(columns + c * per_channel, per_channel);
  }
}

// ---- Tiles ------------------------------------------------------------------

template <typename P>
class Pass {
  using F = typename P::Formula;
  using T = typename P::Element;
  using C = CoefficientOf<T>;
  static constexpr int kSums = P::kNumSums;

 public:
  Pass(const Call& call, const Partition& partition, const Tile& tile,
       StorePolicy policy, const ChannelArrays& channels)
      : view_(call.view),
        partition_(partition),
        tile_(tile),
        policy_(policy),
        out_(channels.sums),
        tensors_(PointersOf<F, T>(call)),
        centers_(channels.centers),
        by_channel_(static_cast<const C*>(channels.coefficients)),
        by_channel_stride_(CoefficientStride(call.view.channels)) {
    tensors_.read_later = static_cast<const T*>(tile.read_later);
    for (int k = 0; k < kSums; ++k) {
      for (int64_t c = tile.c0; c < tile.c1; ++c) SumsOfChannel(out_, k)[c] = 0;
    }
  }

  void Run() {
    if (partition_.kind == Partition::kRows) {
      TakeRows();
    } else {
      TakeChannels();
    }
    if (policy_ == StorePolicy::kNonTemporal) NonTemporalFence();
  }

 protected:
  // ---- kRows

  void TakeRows() {
    const RowPanels panels = RowPanelsOf<T>(view_, partition_, tile_);
    constexpr int64_t kFlushed =
        kSums > 0 ? kChainRows : std::numeric_limits<int64_t>::max();
    const int64_t channels = tile_.c1 - tile_.c0;
    const int64_t outer_columns = channels * view_.inner;
    SetColumns(tile_.c0, channels, view_.inner,
               partition_.fold * outer_columns);
    for (Panel left = panels.full;; left.SkipRows(kFlushed)) {
      const bool last = left.rows <= kFlushed;
      ClearSums(left.columns);
      TakePanel(left.FirstRows(kFlushed), policy_);
      if (last) TakePanel(panels.remainder, policy_);
      // One outer index of the fold after the other.
      for (int64_t f = 0; kSums > 0 && f < partition_.fold; ++f) {
        FlushColumns(f * outer_columns, channels, view_.inner, tile_.c0);
      }
      if (last) return;
    }
  }

  // The centers and coefficients of `channels` channels from c0 on, each with
  // `per_channel` columns, and the same again up to `total` columns.
  void SetColumns(int64_t c0, int64_t channels, int64_t per_channel,
                  int64_t total) {
    const int64_t once = channels * per_channel;
    if constexpr (kSums > 0) {
      SetCenters<T, kCentersAreElements<F>>(centers_ + c0, channels,
                                            per_channel, sums_.center);
      RepeatColumns(once, total, sums_.center);
    }
    if constexpr (P::kReadsCoefficients) {
      if (total == channels) {  // One column each: they are where they are.
        coefficients_ = {by_channel_ + c0, by_channel_stride_};
        return;
      }
      for (int k = P::kFirstCoefficient; k < F::kNumCoefficients; ++k) {
        C* const of = by_column_ + k * kColumnStride;
        SpreadChannels(by_channel_ + k * by_channel_stride_ + c0, channels,
                       per_channel, of);
        RepeatColumns(once, total, of);
      }
    }
  }

  // ---- kSegments

  void TakeChannels() {
    const SegmentPrefetch<T> prefetch(view_, tile_);
    for (int64_t c = tile_.c0; c < tile_.c1; ++c) {
      BeginChannel(c);
      for (int64_t o = tile_.block.o0; o < tile_.block.o1; ++o) {
        TakeLine(c, (o * view_.channels + c) * view_.inner + tile_.block.i0,
                 tile_.block.i1 - tile_.block.i0, prefetch.Of(c, o));
      }
      EndChannel(c);
    }
  }

  void BeginChannel(int64_t c) {
    SetColumns(c, 1, kSegmentColumns, kSegmentColumns);
    ClearSums(kSegmentColumns);
    chain_ = 0;
  }
  void EndChannel(int64_t c) { FlushColumns(0, 1, kSegmentColumns, c); }

  // `length` elements of channel `c` from `first` on, in segments. A pass that
  // stores alone begins with the columns that lead to a full cache line.
  void TakeLine(int64_t c, int64_t first, int64_t length,
                const PrefetchOffsets& prefetch) {
    if constexpr (kSums == 0) {
      const int64_t lead = policy_ == StorePolicy::kNonTemporal
                               ? ElementsToFullLine<F>(tensors_.out, first)
                               : 0;
      if (lead > 0) {
        const int64_t head = std::min(lead, length);
        TakePanel(Panel{first, 1, kSegmentColumns, head},
                  StorePolicy::kTemporal);
        first += head;
        length -= head;
      }
    }
    const int64_t segments = length / kSegmentColumns;
    TakeSegments(
        c, Panel{first, segments, kSegmentColumns, kSegmentColumns, prefetch});
    TakePanel(Panel{first + segments * kSegmentColumns, 1, kSegmentColumns,
                    length % kSegmentColumns},
              policy_);
  }

  // Full segments of channel `c`; sums are flushed every kChainRows over all
  // outer indices.
  void TakeSegments(int64_t c, Panel left) {
    if constexpr (kSums == 0) return TakePanel(left, policy_);
    while (left.rows > 0) {
      const Panel segments = left.FirstRows(ChainLeft());
      TakePanel(segments, policy_);
      left.SkipRows(segments.rows);
      CountSegments(c, segments.rows);
    }
  }
  int64_t ChainLeft() const { return kChainRows - chain_; }
  TFBN_INLINE void CountSegments(int64_t c, int64_t segments) {
    chain_ += segments;
    if (chain_ < kChainRows) return;
    EndChannel(c);
    ClearSums(kSegmentColumns);
    chain_ = 0;
  }

  // ---- Panels

  void TakePanel(const Panel& panel, StorePolicy policy) {
    if constexpr (!P::kHasStores) {
      if (panel.columns == 0) return;
      TakeStrips<P, StorePolicy::kNone>(tensors_, panel, coefficients_, sums_);
    } else {
      ForEachStorePart(tensors_, panel, policy,
                       [&](auto constant, const Panel& part) {
                         TakePart<decltype(constant)::value>(part);
                       });
    }
  }

  // Sums and results take a loop each where strips that do both would go row by
  // row, or to rows that are far apart or alias. A few rows at a time, so that
  // the results are computed from L1. (With rows of 2 KiB one loop is 1.5 times
  // as fast in half; [32, 64, 784], whose rows lie 98 KiB apart, up to 2.7
  // times as slow; with AVX-512 1.2 to 1.5 times as fast.) A mask would be
  // computed twice: 1.25 times as slow.
  template <StorePolicy kPolicy>
  void TakePart(Panel part) {
    constexpr bool kNonTemporal = kPolicy == StorePolicy::kNonTemporal;
    constexpr bool kApart = kSums > 0 && kRowByRow<T, kVectorsOf<P>, kPolicy>;
    if constexpr (kApart || (kSums > 0 && kNonTemporal && !kVectorIsLine)) {
      const int64_t stride_bytes =
          part.row_stride * static_cast<int64_t>(sizeof(T));
      if (kApart ||
          (kIsNarrow<T> ? stride_bytes >= kPageBytes
                        : !kHasMask<F> && HasAliasedRows<T, kPolicy>(part))) {
        return TakeInTwoLoops<kPolicy>(part);
      }
    }
    if constexpr (!kApart) {
      TakeStrips<P, kPolicy>(tensors_, part, coefficients_, sums_);
    }
  }
  template <StorePolicy kPolicy>
  void TakeInTwoLoops(Panel part) {
    ColumnSums<T, 0> none;
    for (; part.rows > 0; part.SkipRows(kTwoLevelChain)) {
      Panel rows = part.FirstRows(kTwoLevelChain);
      TakeStrips<SumsOf<P>, StorePolicy::kNone>(tensors_, rows, coefficients_,
                                                sums_);
      rows.prefetch = {};
      TakeStrips<StoresOf<P>, kPolicy>(tensors_, rows, coefficients_, none);
    }
  }

  // ---- Sums

  void ClearSums([[maybe_unused]] int64_t columns) {
    if constexpr (kSums > 0) {
      for (double* const sum : sums_.sum) {
        for (int64_t c = 0; c < columns; ++c) sum[c] = 0;
      }
    }
  }

  // Adds the columns from `first` on of `channels` channels, each `per_channel`
  // neighbours, to the sums of the channels from c0 on.
  void FlushColumns(int64_t first, int64_t channels, int64_t per_channel,
                    int64_t c0) {
    if constexpr (kSums > 0) {
      for (int k = 0; k < kSums; ++k) {
        AddToChannels(sums_.sum[k] + first, channels, per_channel,
                      SumsOfChannel(out_, k) + c0);
      }
    }
  }

  const View& view_;
  const Partition& partition_;
  const Tile& tile_;
  const StorePolicy policy_;
  const ChannelSums out_;
  TensorPointers<F, T> tensors_;  // Of another row in each one of a pipeline.
  const double* const centers_;
  const C* const by_channel_;
  const int64_t by_channel_stride_;
  int64_t chain_ = 0;  // kSegments: rows in the sums.
  ColumnSums<T, kSums> sums_;
  alignas(kCacheLineBytes) C
      by_column_[P::kReadsCoefficients ? F::kNumCoefficients * kColumnStride
                                       : 1];
  ColumnCoefficients<C> coefficients_ = {by_column_, kColumnStride};
};

// A kernel (isa_kernels.h).
template <typename P>
void RunPass(const Call& call, const Partition& partition, const Tile& tile,
             StorePolicy policy, const ChannelArrays& channels) {
  Pass<P>(call, partition, tile, policy, channels).Run();
}

}  // namespace
}  // namespace tf_bn_ops
