// The two passes over a tile: the loops of batch-norm gradients of any order,
// for all layouts and element types, written once. What is summed and
// computed from the sums says the formula (cc/core/formulas/formula.h).
//
// The results of all builds are equal to the bit: sums run down columns in an
// order that does not depend on the width of a vector, and no multiplication is
// fused with an addition.
//
// Memory is read in the order of addresses, a few short rows side by side at
// most: that is what hardware prefetchers follow.
//
// Included only by translation units of this folder, see vec.h.

#ifndef TF_BN_OPS_CC_CPU_ISA_PASSES_H_
#define TF_BN_OPS_CC_CPU_ISA_PASSES_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/cpu/isa/kernels.h"
#include "cc/cpu/isa/vec.h"

#ifndef TF_BN_OPS_ISA
#error "TF_BN_OPS_ISA names this build, see isa_builds.txt"
#endif

namespace tf_bn_ops {
namespace {

// Vectors per step along a row. With the 32 registers of AVX-512 a run of
// kRunColumns floats is one step.
#if defined(__AVX512F__)
constexpr int kRegisters = 32;
constexpr int kUnroll = 4;
#else
constexpr int kRegisters = 16;
constexpr int kUnroll = 2;
#endif

// The same where a column has `values` values in registers: as many as leave
// room for other operands.
constexpr int VectorsPerStep(int values, int registers) {
  int vectors = kUnroll;
  while (vectors > 1 && vectors * values > registers) --vectors;
  return vectors;
}
// Running sums take two vectors of double for one of float.
template <typename F>
constexpr int kReduceVectors = VectorsPerStep(2 * F::kNumSums, kRegisters / 2);
template <typename F>
constexpr int kApplyVectors =
    VectorsPerStep(F::kNumCoefficients, kRegisters * 3 / 4);

// Column arrays are read in whole vectors.
constexpr int64_t kPaddedColumns = kMaxColumns + kMaxColumns / 16;

// Running sums and the center of each column.
template <typename F>
struct ColumnSums {
  alignas(kCacheLineBytes) double center[kPaddedColumns];
  alignas(kCacheLineBytes) double sum[F::kNumSums][kPaddedColumns];
};

// Where the elements of the tensors begin.
template <typename F, typename T>
struct Elements {
  const T* in[F::kInputs];
  T* out[F::kOutputs];
};

template <typename F, typename T>
Elements<F, T> ElementsOf(const typename F::Args& args) {
  const auto tensors = F::TensorsOf(args);
  Elements<F, T> elements;
  for (int i = 0; i < F::kInputs; ++i) {
    elements.in[i] = static_cast<const T*>(tensors.in[i]);
  }
  for (int i = 0; i < F::kOutputs; ++i) {
    elements.out[i] = static_cast<T*>(tensors.out[i]);
  }
  return elements;
}

// Rows of `columns` contiguous elements, `stride` elements apart, starting at
// element `at` of the tensors.
struct Panel {
  int64_t at, rows, stride, columns;
  // What is this many elements further on is needed soon; 0: no need to ask.
  int64_t ahead = 0;
  // Columns before this one are left out.
  int64_t first = 0;
};

// Asks for what both passes read next. Hardware prefetchers alone follow few
// streams, stop at every page and know nothing of the next row; and what is
// asked for while this thread computes costs no time later. Into the second
// level: the first would lose it again before it is used.
template <typename T, int kVectors>
TFBN_INLINE void Prefetch(const T* p) {
  constexpr int kSecondLevel = 2;
  constexpr int kBytes =
      kVectors * Compute<T>::kLanes * static_cast<int>(sizeof(T));
  for (int i = 0; i < kBytes; i += kCacheLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + i, 0, kSecondLevel);
  }
}

// How far ahead, along the way that a tile is walked. Nearer than what a step
// of several rows covers (kBytesAtOnce) it would come too late, and from there
// to four times as far any distance is as good.
constexpr int64_t kPrefetchBytes = 16384;

// The same as a distance between elements, where the tensor has `rows` rows, of
// which a tile has `columns` elements each, `stride` apart. Where that would
// ask for much beyond the last row, it is what follows to the right, which is
// read after them.
template <typename T>
int64_t Ahead(int64_t rows, int64_t columns, int64_t stride) {
  const int64_t elements = kPrefetchBytes / static_cast<int64_t>(sizeof(T));
  const int64_t ahead = (elements + columns - 1) / columns;
  if (columns == stride || 8 * ahead <= rows) return ahead * stride;
  return (ahead + rows - 1) / std::max<int64_t>(rows, 1) * columns;
}

// Panel::ahead of a tile.
template <typename T>
int64_t AheadOf(const Tile& tile, int64_t rows, int64_t columns,
                int64_t stride) {
  if (tile.in_cache) return 0;
  return tile.next != 0 ? tile.next : Ahead<T>(rows, columns, stride);
}

// Rows that a step of a few columns takes at once. The running sums and
// coefficients of its columns are in registers meanwhile, which saves up to two
// thirds of the loads and stores of what is in cache already. All rows when the
// step is as wide as a row, for then they are walked in order; else no more
// than lie in two pages, which prefetchers follow as one stream, and no more
// than kMostRowsAtOnce, beyond which nothing was gained.
constexpr int64_t kMostRowsAtOnce = 8;
constexpr int64_t kBytesAtOnce = 8192;
template <typename T, int kVectors>
TFBN_INLINE int64_t RowsAtOnce(const Panel& panel) {
  if (panel.columns == kVectors * Compute<T>::kLanes) return panel.rows;
  const int64_t rows =
      kBytesAtOnce / (panel.stride * static_cast<int64_t>(sizeof(T)));
  return rows < 2 ? 2 : rows < kMostRowsAtOnce ? rows : kMostRowsAtOnce;
}

// Cuts a panel into steps: step(vectors, partial, at, rows, c, n) takes
// `vectors` vectors of columns from column c on, in `rows` rows from element
// `at` on; `partial`: the n columns of a vector that is not whole.
template <typename T, int kVectors, typename Step>
TFBN_INLINE void ForSteps(const Panel& panel, const Step& step) {
  constexpr int kLanes = Compute<T>::kLanes;
  constexpr std::integral_constant<int, kVectors> kMany{};
  constexpr std::integral_constant<int, 1> kOne{};
  const int64_t at_once = RowsAtOnce<T, kVectors>(panel);
  for (int64_t r = 0; r < panel.rows; r += at_once) {
    const int64_t left = panel.rows - r;
    const int64_t rows = left < at_once ? left : at_once;
    const int64_t at = panel.at + r * panel.stride;
    int64_t c = panel.first;
    for (; c + kVectors * kLanes <= panel.columns; c += kVectors * kLanes) {
      step(kMany, std::false_type(), at, rows, c, 0);
    }
    for (; c + kLanes <= panel.columns; c += kLanes) {
      step(kOne, std::false_type(), at, rows, c, 0);
    }
    if (c < panel.columns) {
      step(kOne, std::true_type(), at, rows, c,
           static_cast<int>(panel.columns - c));
    }
  }
}

// -----------------------------------------------------------------------------
// Results of elements

// Coefficient k of column c is column[k * stride + c].
template <typename C>
struct ColumnCoefficients {
  const C* column;
  int64_t stride;
};

// Where results go: nowhere (the pass only sums), to the cache, or around it.
enum class Results { kNone, kToCache, kAround };

// Calls pass(results, panel) for all of a panel: where stores go around the
// cache, in up to three parts, for only whole lines do. `results` is a
// constant.
template <typename F, typename T, typename Pass>
void ForResults(const Elements<F, T>& elements, const Panel& panel, bool stream,
                const Pass& pass) {
  constexpr std::integral_constant<Results, Results::kToCache> kToCache{};
  constexpr std::integral_constant<Results, Results::kAround> kAround{};
  constexpr int64_t kLine = kCacheLineBytes / static_cast<int64_t>(sizeof(T));
  if (panel.rows == 0 || panel.columns == 0) return;
  // Elements from the beginning of a line to the first of a row.
  const auto offset = [&](const T* out) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + panel.at) %
                                kCacheLineBytes / sizeof(T));
  };
  const int64_t first = offset(elements.out[0]);
  bool alike = panel.rows == 1 || panel.stride % kLine == 0;
  for (const T* out : elements.out) alike = alike && offset(out) == first;
  Panel lines = panel;
  lines.first = first == 0 ? 0 : kLine - first;
  lines.columns -= (first + panel.columns) % kLine;
  if (!stream || !alike || lines.first >= lines.columns) {
    return pass(kToCache, panel);
  }
  Panel rest = panel;
  if (lines.first > 0) {
    rest.columns = lines.first;
    pass(kToCache, rest);
  }
  pass(kAround, lines);
  if (lines.columns < panel.columns) {
    rest.first = lines.columns;
    rest.columns = panel.columns;
    pass(kToCache, rest);
  }
}

// Loads the coefficients of kVectors vectors of columns from column c on.
template <typename F, int kVectors, bool kTraining, typename C, typename V>
TFBN_INLINE void LoadCoefficients(const ColumnCoefficients<C>& coefficients,
                                  int64_t c,
                                  V (&k)[kVectors][F::kNumCoefficients]) {
  constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(C));
  for (int i = kTraining ? 0 : F::kFirstFrozenCoefficient;
       i < F::kNumCoefficients; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      k[u][i] =
          Load(coefficients.column + i * coefficients.stride + c + u * kLanes);
    }
  }
}

// Makes the results of a vector of elements from element `at` on; kPartial: of
// its first n.
template <typename F, bool kPartial, bool kTraining, Results kResults,
          typename T, typename V>
TFBN_INLINE void MakeResults(const Elements<F, T>& elements, int64_t at, int n,
                             const V (&k)[F::kNumCoefficients]) {
  V in[F::kInputs], out[F::kOutputs];
  for (int i = 0; i < F::kInputs; ++i) {
    const T* const from = elements.in[i] + at;
    in[i] = kPartial ? LoadPartial(from, n) : Load(from);
  }
  F::template Element<kTraining>(in, k, out);
  for (int i = 0; i < F::kOutputs; ++i) {
    T* const to = elements.out[i] + at;
    if (kPartial) {
      StorePartial(to, out[i], n);
    } else if (kResults == Results::kAround) {
      Stream(to, out[i]);
    } else {
      Store(to, out[i]);
    }
  }
}

// Coefficients of a tile's columns, spread out where a channel has more than
// one.
template <typename F, typename T, bool kTraining>
class TileCoefficients {
 public:
  using C = typename Compute<T>::Scalar;

  TileCoefficients(const View& view, const void* coefficients)
      : by_channel_(static_cast<const C*>(coefficients)),
        stride_(CoefficientStride(view.channels)) {}

  // Those of kRows.
  ColumnCoefficients<C> OfRows(const View& view, const Partition& partition,
                               const Tile& tile) {
    if (partition.fold == 1 && view.inner == 1) {
      return {by_channel_ + tile.c0, stride_};
    }
    int64_t first = 0;
    for (int64_t f = 0; f < partition.fold; ++f) {
      for (int64_t c = tile.c0; c < tile.c1; ++c, first += view.inner) {
        Spread(c, first, view.inner);
      }
    }
    return {spread_, kPaddedColumns};
  }

  // Those of kRuns.
  ColumnCoefficients<C> OfRun(int64_t c) {
    Spread(c, 0, kRunColumns);
    return {spread_, kPaddedColumns};
  }

 private:
  void Spread(int64_t c, int64_t first, int64_t n) {
    for (int k = kTraining ? 0 : F::kFirstFrozenCoefficient;
         k < F::kNumCoefficients; ++k) {
      const C value = by_channel_[k * stride_ + c];
      for (int64_t i = first; i < first + n; ++i) {
        spread_[k * kPaddedColumns + i] = value;
      }
    }
  }

  const C* const by_channel_;
  const int64_t stride_;
  alignas(kCacheLineBytes) C spread_[F::kNumCoefficients * kPaddedColumns];
};

// -----------------------------------------------------------------------------
// Reduce

// Adds the terms of kVectors vectors of columns from column c on, in all
// `rows` from element `at` on, to the first kSums sums, and makes their frozen
// results; kPartial: of the n columns of a vector that is not whole.
template <typename F, int kSums, Results kResults, int kVectors, bool kPartial,
          typename T>
TFBN_INLINE void ReduceStep(
    const Elements<F, T>& elements, int64_t at, int64_t rows, int64_t stride,
    int64_t ahead, int64_t c, int n,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    ColumnSums<F>& sums) {
  using V = typename Compute<T>::Vector;
  using Wide = decltype(Widen(Load(elements.in[0])));
  constexpr int kLanes = Compute<T>::kLanes;
  constexpr int kWideVectors = kVectors * Wide::kParts;
  VD sum[kWideVectors][kSums];
  for (int v = 0; v < kWideVectors; ++v) {
    for (int k = 0; k < kSums; ++k) {
      sum[v][k] = Load(sums.sum[k] + c + v * kDoubleLanes);
    }
  }
  V k[kVectors][F::kNumCoefficients];
  if constexpr (kResults != Results::kNone) {
    LoadCoefficients<F, kVectors, false>(coefficients, c, k);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = at + r * stride + c;
    const T* in[F::kInputs];
    for (int i = 0; i < F::kInputs; ++i) {
      in[i] = elements.in[i] + first;
      if (!kPartial && ahead != 0) Prefetch<T, kVectors>(in[i] + ahead);
    }
    for (int u = 0; u < kVectors; ++u) {
      Wide wide[F::kInputs];
      for (int i = 0; i < F::kInputs; ++i) {
        wide[i] = kPartial ? Widen(LoadPartial(in[i], n))
                           : LoadWide(in[i] + u * kLanes);
      }
      for (int p = 0; p < Wide::kParts; ++p) {
        const int v = u * Wide::kParts + p;
        VD part[F::kInputs];
        for (int i = 0; i < F::kInputs; ++i) part[i] = wide[i].part[p];
        F::Accumulate(part, Load(sums.center + c + v * kDoubleLanes), sum[v]);
      }
      if constexpr (kResults != Results::kNone) {
        MakeResults<F, kPartial, false, kResults>(elements, first + u * kLanes,
                                                  n, k[u]);
      }
    }
  }
  for (int v = 0; v < kWideVectors; ++v) {
    const int64_t at_column = c + v * kDoubleLanes;
    // The sums of columns behind the n-th stay what they are.
    const int left = n - v * kDoubleLanes;
    const int lanes = left < 0 ? 0 : left < kDoubleLanes ? left : kDoubleLanes;
    for (int i = 0; i < kSums; ++i) {
      if (kPartial) {
        StorePartial(sums.sum[i] + at_column, sum[v][i], lanes);
      } else {
        Store(sums.sum[i] + at_column, sum[v][i]);
      }
    }
  }
}

template <typename F, int kSums, Results kResults, typename T>
void ReduceRows(
    const Elements<F, T>& elements, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    ColumnSums<F>& sums) {
  ForSteps<T, kReduceVectors<F>>(
      panel, [&](auto vectors, auto partial, int64_t at, int64_t rows,
                 int64_t c, int n) __attribute__((always_inline)) {
        ReduceStep<F, kSums, kResults, decltype(vectors)::value,
                   decltype(partial)::value>(elements, at, rows, panel.stride,
                                             panel.ahead, c, n, coefficients,
                                             sums);
      });
}

// Training only sums; frozen makes the results, too, around the cache if
// `stream` says so and alignment allows it.
template <typename F, int kSums, bool kTraining, typename T>
void ReducePanel(
    const Elements<F, T>& elements, const Panel& panel, bool stream,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    ColumnSums<F>& sums) {
  if constexpr (kTraining) {
    if (panel.columns == 0) return;
    ReduceRows<F, kSums, Results::kNone>(elements, panel, coefficients, sums);
  } else {
    ForResults(elements, panel, stream, [&](auto results, const Panel& part) {
      ReduceRows<F, kSums, decltype(results)::value>(elements, part,
                                                     coefficients, sums);
    });
  }
}

// The centers of channels [c, c + n).
void LoadCenters(const CenterArray& centers, int64_t c, int64_t n,
                 double* out) {
  if (centers.data != nullptr && centers.stride == 1) {  // Vectorizes.
    LoadAsDoubles(centers.dtype, centers.data, c, n, out);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = CenterAt(centers, c + i);
}

template <int kSums, typename F>
void ClearColumns(int64_t columns, ColumnSums<F>& sums) {
  for (int k = 0; k < kSums; ++k) {
    for (int64_t c = 0; c < columns; ++c) sums.sum[k][c] = 0;
  }
}

// Adds up `n` neighbouring columns in eight interleaved chains: short chains
// for speed, a fixed number of them for the same bits in every build.
double AddColumns(const double* column, int64_t n) {
  double chain[8] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int j = 0; j < 8; ++j) chain[j] += column[i + j];
  }
  for (int64_t i = whole; i < n; ++i) chain[i - whole] += column[i];
  return ((chain[0] + chain[1]) + (chain[2] + chain[3])) +
         ((chain[4] + chain[5]) + (chain[6] + chain[7]));
}

// Adds the columns from `first` on of `channels` channels, each `per_channel`
// neighbours, to the sums of the channels from c0 on.
template <int kSums, typename F>
void FlushColumns(const ColumnSums<F>& sums, int64_t first, int64_t channels,
                  int64_t per_channel, int64_t c0, const ChannelSums& out) {
  for (int k = 0; k < kSums; ++k) {
    const double* const columns = sums.sum[k] + first;
    double* const total = SumsOf(out, k) + c0;
    if (per_channel == 1) {  // The same, in a loop that vectorizes.
      for (int64_t c = 0; c < channels; ++c) total[c] += columns[c];
      continue;
    }
    for (int64_t c = 0; c < channels; ++c) {
      total[c] += AddColumns(columns + c * per_channel, per_channel);
    }
  }
}

// Rows of a tile: whole rows of `fold` outer indices, then one row of what is
// left.
struct RowPanels {
  Panel whole, rest;
};

template <typename T>
RowPanels PanelsOf(const View& view, const Partition& partition,
                   const Tile& tile) {
  const int64_t row = view.channels * view.inner;
  const int64_t columns = (tile.c1 - tile.c0) * view.inner;
  const int64_t count = tile.block.o1 - tile.block.o0;
  const int64_t whole = count / partition.fold;
  const int64_t at = tile.block.o0 * row + tile.c0 * view.inner;
  const int64_t stride = partition.fold * row;
  return RowPanels{
      {at, whole, stride, partition.fold * columns,
       AheadOf<T>(tile, view.outer / partition.fold, partition.fold * columns,
                  stride)},
      {at + whole * stride, 1, stride, count % partition.fold * columns}};
}

// Panel::ahead for the runs of a tile: in a later outer index, unless runs are
// long.
template <typename T>
int64_t RunAhead(const View& view, const Tile& tile) {
  const int64_t length = tile.block.i1 - tile.block.i0;
  if (length * static_cast<int64_t>(sizeof(T)) > 4 * kPrefetchBytes) {
    return AheadOf<T>(tile, 1, kRunColumns, kRunColumns);
  }
  return AheadOf<T>(tile, view.outer, length, view.channels * view.inner);
}

// Kernels::Reduce and, frozen, Kernels::Frozen for the first kSums sums.
template <typename F, typename T, int kSums, bool kTraining>
void ReduceTile(const typename F::Args& args, const Partition& partition,
                const Tile& tile, const void* coefficients, bool stream,
                const ChannelSums& out) {
  const Elements<F, T> elements = ElementsOf<F, T>(args);
  const View& view = args.view;
  const int64_t channels = tile.c1 - tile.c0;
  const CenterArray centers = F::CentersOf(args);
  ColumnSums<F> sums;
  TileCoefficients<F, T, kTraining> of_tile(view, coefficients);
  ColumnCoefficients<typename Compute<T>::Scalar> columns_of = {};
  for (int k = 0; k < kSums; ++k) {
    for (int64_t c = tile.c0; c < tile.c1; ++c) SumsOf(out, k)[c] = 0;
  }
  if (partition.kind == Partition::kRows) {
    const RowPanels panels = PanelsOf<T>(view, partition, tile);
    const int64_t row_columns = channels * view.inner;
    const int64_t columns = partition.fold * row_columns;
    if (view.inner == 1) {
      LoadCenters(centers, tile.c0, channels, sums.center);
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        const double center = CenterAt(centers, tile.c0 + c);
        for (int64_t i = 0; i < view.inner; ++i) {
          sums.center[c * view.inner + i] = center;
        }
      }
    }
    for (int64_t column = row_columns; column < columns; ++column) {
      sums.center[column] = sums.center[column - row_columns];
    }
    if (!kTraining) columns_of = of_tile.OfRows(view, partition, tile);
    for (int64_t r = 0; r <= panels.whole.rows; r += kChainRows) {
      Panel chain = panels.whole;
      chain.at += r * chain.stride;
      chain.rows -= r;
      const bool last = chain.rows <= kChainRows;
      if (!last) chain.rows = kChainRows;
      ClearColumns<kSums>(columns, sums);
      ReducePanel<F, kSums, kTraining>(elements, chain, stream, columns_of,
                                       sums);
      if (last) {
        ReducePanel<F, kSums, kTraining>(elements, panels.rest, stream,
                                         columns_of, sums);
      }
      for (int64_t f = 0; f < partition.fold; ++f) {
        FlushColumns<kSums>(sums, f * row_columns, channels, view.inner,
                            tile.c0, out);
      }
      if (last) break;
    }
    if (!kTraining && stream) StreamFence();
    return;
  }
  const int64_t length = tile.block.i1 - tile.block.i0;
  const int64_t runs = length / kRunColumns;
  const int64_t tail = length % kRunColumns;
  const int64_t ahead = RunAhead<T>(view, tile);
  for (int64_t c = tile.c0; c < tile.c1; ++c) {
    const double center = CenterAt(centers, c);
    for (int64_t column = 0; column < kRunColumns; ++column) {
      sums.center[column] = center;
    }
    if (!kTraining) columns_of = of_tile.OfRun(c);
    ClearColumns<kSums>(kRunColumns, sums);
    int64_t chain = 0;
    for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
      const int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
      for (int64_t r = 0; r < runs;) {
        const int64_t left = kChainRows - chain;
        const int64_t rows = runs - r < left ? runs - r : left;
        ReducePanel<F, kSums, kTraining>(
            elements,
            Panel{at + r * kRunColumns, rows, kRunColumns, kRunColumns, ahead},
            stream, columns_of, sums);
        r += rows;
        chain += rows;
        if (chain == kChainRows) {
          FlushColumns<kSums>(sums, 0, 1, kRunColumns, c, out);
          ClearColumns<kSums>(kRunColumns, sums);
          chain = 0;
        }
      }
      ReducePanel<F, kSums, kTraining>(
          elements, Panel{at + runs * kRunColumns, 1, kRunColumns, tail},
          stream, columns_of, sums);
    }
    FlushColumns<kSums>(sums, 0, 1, kRunColumns, c, out);
  }
  if (!kTraining && stream) StreamFence();
}

template <typename F, typename T>
void Reduce(const typename F::Args& args, const Partition& partition,
            const Tile& tile, const ChannelSums& out) {
  ReduceTile<F, T, F::kNumSums, true>(args, partition, tile, nullptr, false,
                                      out);
}

template <typename F, typename T>
void Frozen(const typename F::Args& args, const Partition& partition,
            const Tile& tile, const void* coefficients, bool stream,
            const ChannelSums& out) {
  ReduceTile<F, T, F::kNumFrozenSums, false>(args, partition, tile,
                                             coefficients, stream, out);
}

template <typename F, typename T>
void Coefficients(const typename F::Args& args, int64_t c0, int64_t c1,
                  const ChannelSums& sums, void* coefficients) {
  using C = typename Compute<T>::Scalar;
  const int64_t stride = CoefficientStride(args.view.channels);
  const CenterArray centers = F::CentersOf(args);
  for (int64_t c = c0; c < c1; ++c) {
    double of_channel[F::kNumSums] = {};
    if (args.is_training) LoadSums<F::kNumSums>(sums, c, of_channel);
    C k[F::kNumCoefficients];
    F::Finish(args, c, CenterAt(centers, c), of_channel, k);
    C* const out = static_cast<C*>(coefficients) + c;
    for (int i = args.is_training ? 0 : F::kFirstFrozenCoefficient;
         i < F::kNumCoefficients; ++i) {
      out[i * stride] = k[i];
    }
  }
}

// -----------------------------------------------------------------------------
// Apply

// Makes the results of kVectors vectors of columns from column c on, in all
// `rows` from element `at` on; kPartial: of the n columns of a vector that is
// not whole.
template <typename F, Results kResults, int kVectors, bool kPartial, typename T>
TFBN_INLINE void ApplyStep(
    const Elements<F, T>& elements, int64_t at, int64_t rows, int64_t stride,
    int64_t ahead, int64_t c, int n,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  constexpr int kLanes = Compute<T>::kLanes;
  typename Compute<T>::Vector k[kVectors][F::kNumCoefficients];
  LoadCoefficients<F, kVectors, true>(coefficients, c, k);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = at + r * stride + c;
    if (!kPartial && ahead != 0) {
      for (int i = 0; i < F::kInputs; ++i) {
        Prefetch<T, kVectors>(elements.in[i] + first + ahead);
      }
    }
    for (int u = 0; u < kVectors; ++u) {
      MakeResults<F, kPartial, true, kResults>(elements, first + u * kLanes, n,
                                               k[u]);
    }
  }
}

template <typename F, Results kResults, typename T>
void ApplyRows(
    const Elements<F, T>& elements, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  ForSteps<T, kApplyVectors<F>>(
      panel, [&](auto vectors, auto partial, int64_t at, int64_t rows,
                 int64_t c, int n) __attribute__((always_inline)) {
        ApplyStep<F, kResults, decltype(vectors)::value,
                  decltype(partial)::value>(elements, at, rows, panel.stride,
                                            panel.ahead, c, n, coefficients);
      });
}

template <typename F, typename T>
void ApplyPanel(
    const Elements<F, T>& elements, const Panel& panel, bool stream,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  ForResults(elements, panel, stream, [&](auto results, const Panel& part) {
    ApplyRows<F, decltype(results)::value>(elements, part, coefficients);
  });
}

template <typename F, typename T>
void Apply(const typename F::Args& args, const Partition& partition,
           const Tile& tile, const void* coefficients, bool stream) {
  const Elements<F, T> elements = ElementsOf<F, T>(args);
  const View& view = args.view;
  TileCoefficients<F, T, true> of_tile(view, coefficients);
  if (partition.kind == Partition::kRows) {
    const RowPanels panels = PanelsOf<T>(view, partition, tile);
    const auto columns = of_tile.OfRows(view, partition, tile);
    ApplyPanel(elements, panels.whole, stream, columns);
    ApplyPanel(elements, panels.rest, stream, columns);
  } else {
    const int64_t length = tile.block.i1 - tile.block.i0;
    const int64_t ahead = RunAhead<T>(view, tile);
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      const auto columns = of_tile.OfRun(c);
      for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
        int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
        int64_t left = length;
        const T* out = elements.out[0] + at;
        const int64_t misaligned =
            reinterpret_cast<uintptr_t>(out) % kCacheLineBytes;
        if (stream && misaligned != 0) {
          // A short first row makes all others aligned.
          int64_t head =
              (kCacheLineBytes - misaligned) / static_cast<int64_t>(sizeof(T));
          if (head > left) head = left;
          ApplyPanel(elements, Panel{at, 1, kRunColumns, head}, false, columns);
          at += head;
          left -= head;
        }
        const int64_t runs = left / kRunColumns;
        ApplyPanel(elements, Panel{at, runs, kRunColumns, kRunColumns, ahead},
                   stream, columns);
        ApplyPanel(
            elements,
            Panel{at + runs * kRunColumns, 1, kRunColumns, left % kRunColumns},
            stream, columns);
      }
    }
  }
  if (stream) StreamFence();
}

}  // namespace

// The initializer of an array that is indexed by DType.
#define TFBN_FOR_DTYPES(K, F) \
  {K<F, float>, K<F, Float16>, K<F, Bfloat16>, K<F, double>}

#define TFBN_CONCAT_(a, b) a##_##b
#define TFBN_CONCAT(a, b) TFBN_CONCAT_(a, b)
// Kernels_<build>, see kernels.h.
#define TFBN_KERNELS_OF_BUILD TFBN_CONCAT(Kernels, TF_BN_OPS_ISA)

// Defines this build's kernels of the formula F.
#define TFBN_DEFINE_KERNELS(F)                                        \
  namespace tf_bn_ops {                                               \
  const Kernels<F>& TFBN_KERNELS_OF_BUILD(const F*);                  \
  const Kernels<F>& TFBN_KERNELS_OF_BUILD(const F*) {                 \
    static constexpr Kernels<F> kKernels = {                          \
        TFBN_FOR_DTYPES(Reduce, F), TFBN_FOR_DTYPES(Coefficients, F), \
        TFBN_FOR_DTYPES(Apply, F), TFBN_FOR_DTYPES(Frozen, F)};       \
    return kKernels;                                                  \
  }                                                                   \
  }

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_PASSES_H_
