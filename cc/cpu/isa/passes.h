// The two passes over a tile: the loops of batch-norm gradients of any order,
// for all layouts and element types, written once. A formula says what is
// summed and what is made of the sums:
//
//   struct Formula : FirstOrder or another order of kernels.h {
//     // Vectors per step along a row, in the pass that reduces and in the one
//     // that applies.
//     static constexpr int kReduceVectors, kApplyVectors;
//     // What the sums of channels [c, c + n) subtract: the centers.
//     static void Centers(const Args&, int64_t c, int64_t n, double* out);
//     // Adds the terms of a vector of elements to the first kSums sums.
//     template <int kSums>
//     static void Accumulate(const VD (&in)[kInputs], VD center,
//                            VD (&sum)[kSums]);
//     // Kernels::Coefficients for elements of T.
//     template <typename T>
//     static void Coefficients(...);
//     // Makes the results of a vector of elements from coefficients k; frozen,
//     // those before kFirstFrozenCoefficient are not there.
//     template <bool kTraining, typename V>
//     static void Element(const V (&in)[kInputs],
//                         const V (&k)[kNumCoefficients], V (&out)[kOutputs]);
//   };
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
constexpr int kUnroll = 4;
#else
constexpr int kUnroll = 2;
#endif

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
  const auto tensors = TensorsOf(args);
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
};

// Cache levels to prefetch into: what is needed within microseconds goes into
// all, the next tile only into the second, as the first would lose it again.
constexpr int kAllLevels = 3;
constexpr int kSecondLevel = 2;

// Hardware prefetchers lose a stream that jumps; where the next row is
// elsewhere, or a run ends soon, the reduction asks for it itself. It does for
// one contiguous stretch, too: on some processors that is a tenth to a quarter
// faster than the hardware alone, on others the same. The apply pass, whose
// own input is in cache, asks for the next tile's, so that memory is busy in
// both passes.
template <typename T, int kVectors, int kLocality>
TFBN_INLINE void Prefetch(const T* p) {
  constexpr int kBytes =
      kVectors * Compute<T>::kLanes * static_cast<int>(sizeof(T));
  for (int i = 0; i < kBytes; i += kCacheLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + i, 0, kLocality);
  }
}

// How far ahead of a run within a channel: a page, measured as good as any
// distance from 2 KiB to 8 KiB.
constexpr int64_t kPrefetchBytes = 4096;

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
    int64_t c = 0;
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
// Reduce

// Adds the terms of kVectors vectors of columns from column c on, in all
// `rows` from element `at` on, to the first kSums sums; kPartial: of the n
// columns of a vector that is not whole.
template <typename F, int kSums, int kVectors, bool kPartial, typename T>
TFBN_INLINE void ReduceStep(const Elements<F, T>& elements, int64_t at,
                            int64_t rows, int64_t stride, int64_t ahead,
                            int64_t c, int n, ColumnSums<F>& sums) {
  using Wide = decltype(Widen(Load(elements.in[0])));
  constexpr int kLanes = Compute<T>::kLanes;
  constexpr int kWideVectors = kVectors * Wide::kParts;
  VD sum[kWideVectors][kSums];
  for (int v = 0; v < kWideVectors; ++v) {
    for (int k = 0; k < kSums; ++k) {
      sum[v][k] = Load(sums.sum[k] + c + v * kDoubleLanes);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const T* in[F::kInputs];
    for (int i = 0; i < F::kInputs; ++i) {
      in[i] = elements.in[i] + at + r * stride + c;
      if (!kPartial && ahead != 0) {
        Prefetch<T, kVectors, kAllLevels>(in[i] + ahead);
      }
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
    }
  }
  for (int v = 0; v < kWideVectors; ++v) {
    const int64_t at_column = c + v * kDoubleLanes;
    // The sums of columns behind the n-th stay what they are.
    const int left = n - v * kDoubleLanes;
    const int lanes = left < 0 ? 0 : left < kDoubleLanes ? left : kDoubleLanes;
    for (int k = 0; k < kSums; ++k) {
      if (kPartial) {
        StorePartial(sums.sum[k] + at_column, sum[v][k], lanes);
      } else {
        Store(sums.sum[k] + at_column, sum[v][k]);
      }
    }
  }
}

template <typename F, int kSums, typename T>
void ReduceRows(const Elements<F, T>& elements, const Panel& panel,
                ColumnSums<F>& sums) {
  ForSteps<T, F::kReduceVectors>(
      panel, [&](auto vectors, auto partial, int64_t at, int64_t rows,
                 int64_t c, int n) __attribute__((always_inline)) {
        ReduceStep<F, kSums, decltype(vectors)::value,
                   decltype(partial)::value>(elements, at, rows, panel.stride,
                                             panel.ahead, c, n, sums);
      });
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
       partition.fold * columns == stride
           ? kPrefetchBytes / static_cast<int64_t>(sizeof(T))
           : 2 * stride},
      {at + whole * stride, 1, stride, count % partition.fold * columns}};
}

// Kernels::Reduce for the first kSums sums.
template <typename F, typename T, int kSums>
void ReduceSums(const typename F::Args& args, const Partition& partition,
                const Tile& tile, const ChannelSums& out) {
  const Elements<F, T> elements = ElementsOf<F, T>(args);
  const View& view = args.view;
  const int64_t channels = tile.c1 - tile.c0;
  ColumnSums<F> sums;
  for (int k = 0; k < kSums; ++k) {
    for (int64_t c = tile.c0; c < tile.c1; ++c) SumsOf(out, k)[c] = 0;
  }
  if (partition.kind == Partition::kRows) {
    const RowPanels panels = PanelsOf<T>(view, partition, tile);
    const int64_t row_columns = channels * view.inner;
    const int64_t columns = partition.fold * row_columns;
    if (view.inner == 1) {
      F::Centers(args, tile.c0, channels, sums.center);
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        double center;
        F::Centers(args, tile.c0 + c, 1, &center);
        for (int64_t i = 0; i < view.inner; ++i) {
          sums.center[c * view.inner + i] = center;
        }
      }
    }
    for (int64_t column = row_columns; column < columns; ++column) {
      sums.center[column] = sums.center[column - row_columns];
    }
    for (int64_t r = 0; r <= panels.whole.rows; r += kChainRows) {
      Panel chain = panels.whole;
      chain.at += r * chain.stride;
      chain.rows -= r;
      const bool last = chain.rows <= kChainRows;
      if (!last) chain.rows = kChainRows;
      ClearColumns<kSums>(columns, sums);
      ReduceRows<F, kSums>(elements, chain, sums);
      if (last && panels.rest.columns > 0) {
        ReduceRows<F, kSums>(elements, panels.rest, sums);
      }
      for (int64_t f = 0; f < partition.fold; ++f) {
        FlushColumns<kSums>(sums, f * row_columns, channels, view.inner,
                            tile.c0, out);
      }
      if (last) break;
    }
    return;
  }
  const int64_t length = tile.block.i1 - tile.block.i0;
  const int64_t runs = length / kRunColumns;
  const int64_t tail = length % kRunColumns;
  for (int64_t c = tile.c0; c < tile.c1; ++c) {
    double center;
    F::Centers(args, c, 1, &center);
    for (int64_t column = 0; column < kRunColumns; ++column) {
      sums.center[column] = center;
    }
    ClearColumns<kSums>(kRunColumns, sums);
    int64_t chain = 0;
    for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
      const int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
      for (int64_t r = 0; r < runs;) {
        const int64_t left = kChainRows - chain;
        const int64_t rows = runs - r < left ? runs - r : left;
        ReduceRows<F, kSums>(
            elements,
            Panel{at + r * kRunColumns, rows, kRunColumns, kRunColumns,
                  kPrefetchBytes / static_cast<int64_t>(sizeof(T))},
            sums);
        r += rows;
        chain += rows;
        if (chain == kChainRows) {
          FlushColumns<kSums>(sums, 0, 1, kRunColumns, c, out);
          ClearColumns<kSums>(kRunColumns, sums);
          chain = 0;
        }
      }
      if (tail > 0) {
        ReduceRows<F, kSums>(
            elements, Panel{at + runs * kRunColumns, 1, kRunColumns, tail},
            sums);
      }
    }
    FlushColumns<kSums>(sums, 0, 1, kRunColumns, c, out);
  }
}

template <typename F, typename T>
void Reduce(const typename F::Args& args, const Partition& partition,
            const Tile& tile, const ChannelSums& out) {
  if (args.is_training) {
    ReduceSums<F, T, F::kNumSums>(args, partition, tile, out);
  } else {
    ReduceSums<F, T, F::kNumFrozenSums>(args, partition, tile, out);
  }
}

template <typename F, typename T>
void Coefficients(const typename F::Args& args, int64_t c0, int64_t c1,
                  const ChannelSums& sums, void* coefficients) {
  F::template Coefficients<T>(args, c0, c1, sums, coefficients);
}

// -----------------------------------------------------------------------------
// Apply

// Coefficient k of column c is column[k * stride + c].
template <typename C>
struct ColumnCoefficients {
  const C* column;
  int64_t stride;
};

// Makes the results of kVectors vectors of columns from column c on, in all
// `rows` from element `at` on; kPartial: of the n columns of a vector that is
// not whole.
template <typename F, int kVectors, bool kPartial, bool kTraining, bool kStream,
          typename T>
TFBN_INLINE void ApplyStep(
    const Elements<F, T>& elements, int64_t at, int64_t rows, int64_t stride,
    int64_t ahead, int64_t c, int n,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  using V = typename Compute<T>::Vector;
  constexpr int kLanes = Compute<T>::kLanes;
  V k[kVectors][F::kNumCoefficients];
  for (int i = kTraining ? 0 : F::kFirstFrozenCoefficient;
       i < F::kNumCoefficients; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      k[u][i] =
          Load(coefficients.column + i * coefficients.stride + c + u * kLanes);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = at + r * stride + c;
    if (!kPartial && ahead != 0) {
      for (int i = 0; i < F::kInputs; ++i) {
        Prefetch<T, kVectors, kSecondLevel>(elements.in[i] + first + ahead);
      }
    }
    for (int u = 0; u < kVectors; ++u) {
      V in[F::kInputs], out[F::kOutputs];
      for (int i = 0; i < F::kInputs; ++i) {
        const T* const from = elements.in[i] + first + u * kLanes;
        in[i] = kPartial ? LoadPartial(from, n) : Load(from);
      }
      F::template Element<kTraining>(in, k[u], out);
      for (int i = 0; i < F::kOutputs; ++i) {
        T* const to = elements.out[i] + first + u * kLanes;
        if (kPartial) {
          StorePartial(to, out[i], n);
        } else if (kStream) {
          Stream(to, out[i]);
        } else {
          Store(to, out[i]);
        }
      }
    }
  }
}

template <typename F, bool kTraining, bool kStream, typename T>
void ApplyRows(
    const Elements<F, T>& elements, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  ForSteps<T, F::kApplyVectors>(
      panel, [&](auto vectors, auto partial, int64_t at, int64_t rows,
                 int64_t c, int n) __attribute__((always_inline)) {
        ApplyStep<F, decltype(vectors)::value, decltype(partial)::value,
                  kTraining, kStream>(elements, at, rows, panel.stride,
                                      panel.ahead, c, n, coefficients);
      });
}

template <typename F, typename T>
void ApplyPanel(
    const Elements<F, T>& elements, bool is_training, const Panel& panel,
    bool stream,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  if (panel.rows == 0 || panel.columns == 0) return;
  // Streaming stores want whole, aligned vectors; every row of a panel has the
  // same alignment or the panel is stored the ordinary way.
  bool aligned =
      panel.rows == 1 || panel.stride * sizeof(T) % kCacheLineBytes == 0;
  for (const T* out : elements.out) {
    aligned =
        aligned &&
        reinterpret_cast<uintptr_t>(out + panel.at) % kCacheLineBytes == 0;
  }
  if (is_training) {
    if (stream && aligned) {
      ApplyRows<F, true, true>(elements, panel, coefficients);
    } else {
      ApplyRows<F, true, false>(elements, panel, coefficients);
    }
  } else {
    if (stream && aligned) {
      ApplyRows<F, false, true>(elements, panel, coefficients);
    } else {
      ApplyRows<F, false, false>(elements, panel, coefficients);
    }
  }
}

template <typename F, typename T>
void Apply(const typename F::Args& args, const Partition& partition,
           const Tile& tile, const void* coefficients, bool stream) {
  using C = typename Compute<T>::Scalar;
  const Elements<F, T> elements = ElementsOf<F, T>(args);
  const View& view = args.view;
  const C* const by_channel = static_cast<const C*>(coefficients);
  // Coefficients of columns, where a channel has more than one.
  alignas(kCacheLineBytes) C expanded[F::kNumCoefficients * kPaddedColumns];
  const auto expand = [&](int64_t c, int64_t first, int64_t n) {
    for (int k = 0; k < F::kNumCoefficients; ++k) {
      const C value = by_channel[k * CoefficientStride(view.channels) + c];
      for (int64_t i = first; i < first + n; ++i) {
        expanded[k * kPaddedColumns + i] = value;
      }
    }
  };
  ColumnCoefficients<C> columns = {expanded, kPaddedColumns};
  if (partition.kind == Partition::kRows) {
    RowPanels panels = PanelsOf<T>(view, partition, tile);
    panels.whole.ahead = tile.next;
    if (partition.fold == 1 && view.inner == 1) {
      columns = {by_channel + tile.c0, CoefficientStride(view.channels)};
    } else {
      int64_t first = 0;
      for (int64_t f = 0; f < partition.fold; ++f) {
        for (int64_t c = tile.c0; c < tile.c1; ++c, first += view.inner) {
          expand(c, first, view.inner);
        }
      }
    }
    ApplyPanel(elements, args.is_training, panels.whole, stream, columns);
    ApplyPanel(elements, args.is_training, panels.rest, stream, columns);
  } else {
    const int64_t length = tile.block.i1 - tile.block.i0;
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      expand(c, 0, kRunColumns);
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
          ApplyPanel(elements, args.is_training,
                     Panel{at, 1, kRunColumns, head}, false, columns);
          at += head;
          left -= head;
        }
        const int64_t runs = left / kRunColumns;
        ApplyPanel(elements, args.is_training,
                   Panel{at, runs, kRunColumns, kRunColumns, tile.next}, stream,
                   columns);
        ApplyPanel(
            elements, args.is_training,
            Panel{at + runs * kRunColumns, 1, kRunColumns, left % kRunColumns},
            stream, columns);
      }
    }
  }
  if (stream) StreamFence();
}

}  // namespace

// The name of a function that every build has one of.
#define TFBN_CONCAT_(a, b) a##_##b
#define TFBN_CONCAT(a, b) TFBN_CONCAT_(a, b)
#define TFBN_PER_BUILD(name) TFBN_CONCAT(name, TF_BN_OPS_ISA)

// The initializer of a Kernels; entries in the order of DType.
#define TFBN_FOR_DTYPES(K, F) \
  {K<F, float>, K<F, Float16>, K<F, Bfloat16>, K<F, double>}
#define TFBN_KERNELS(F)                                          \
  {TFBN_FOR_DTYPES(Reduce, F), TFBN_FOR_DTYPES(Coefficients, F), \
   TFBN_FOR_DTYPES(Apply, F)}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_PASSES_H_
