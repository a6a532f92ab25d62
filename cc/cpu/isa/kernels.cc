// The CPU kernels of the batch-norm gradient: one source for all layouts and
// element types, compiled once for every line of isa_builds.txt with
// TF_BN_OPS_ISA set to its name.
//
// The results of all builds are equal to the bit: sums run down columns in an
// order that does not depend on the width of a vector, and no multiplication is
// fused with an addition.
//
// Memory is read row by row, in the order of addresses: that is what hardware
// prefetchers follow. Walking several rows side by side to keep running sums in
// registers reads memory at half the speed.

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

// Running sums and the mean of each column.
struct ColumnSums {
  alignas(kCacheLineBytes) double mean[kPaddedColumns];
  alignas(kCacheLineBytes) double dy[kPaddedColumns];
  alignas(kCacheLineBytes) double dy_xmu[kPaddedColumns];
};

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
// elsewhere, or a run ends soon, the reduction asks for it itself. (Panels that
// are one contiguous stretch are read no faster with it.) The apply pass, whose
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

// Rows that a step of `kUnroll` vectors may take at once: all of them when that
// is a whole row, for then they are walked in order, and the running sums and
// coefficients stay in registers.
template <typename T>
TFBN_INLINE int64_t RowsAtOnce(const Panel& panel) {
  return panel.columns == kUnroll * Compute<T>::kLanes ? panel.rows : 1;
}

// -----------------------------------------------------------------------------
// Reduce

// For kUnrollHere vectors of columns and all `rows`:
//
//   sums.dy[c]     += dy[r][c]
//   sums.dy_xmu[c] += dy[r][c] * (x[r][c] - mean[c])
template <typename T, int kUnrollHere, bool kPartial>
TFBN_INLINE void ReduceStep(const T* dy, const T* x, int64_t rows,
                            int64_t stride, int64_t ahead, int64_t c, int n,
                            ColumnSums& sums) {
  using Wide = decltype(Widen(Load(dy)));
  constexpr int kLanes = Compute<T>::kLanes;
  constexpr int kVectors = kUnrollHere * Wide::kParts;
  VD dy_sum[kVectors], xmu_sum[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    dy_sum[v] = Load(sums.dy + c + v * kDoubleLanes);
    xmu_sum[v] = Load(sums.dy_xmu + c + v * kDoubleLanes);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * stride + c;
    if (!kPartial && ahead != 0) {
      Prefetch<T, kUnrollHere, kAllLevels>(dy + at + ahead);
      Prefetch<T, kUnrollHere, kAllLevels>(x + at + ahead);
    }
    for (int u = 0; u < kUnrollHere; ++u) {
      const Wide dy_wide = kPartial ? Widen(LoadPartial(dy + at, n))
                                    : LoadWide(dy + at + u * kLanes);
      const Wide x_wide = kPartial ? Widen(LoadPartial(x + at, n))
                                   : LoadWide(x + at + u * kLanes);
      for (int p = 0; p < Wide::kParts; ++p) {
        const int v = u * Wide::kParts + p;
        const VD mean = Load(sums.mean + c + v * kDoubleLanes);
        dy_sum[v] += dy_wide.part[p];
        xmu_sum[v] += dy_wide.part[p] * (x_wide.part[p] - mean);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    Store(sums.dy + c + v * kDoubleLanes, dy_sum[v]);
    Store(sums.dy_xmu + c + v * kDoubleLanes, xmu_sum[v]);
  }
}

template <typename T>
void ReduceRows(const T* dy, const T* x, const Panel& panel, ColumnSums& sums) {
  constexpr int kLanes = Compute<T>::kLanes;
  const int64_t rows = RowsAtOnce<T>(panel);
  for (int64_t r = 0; r < panel.rows; r += rows) {
    const T* dy_row = dy + panel.at + r * panel.stride;
    const T* x_row = x + panel.at + r * panel.stride;
    int64_t c = 0;
    for (; c + kUnroll * kLanes <= panel.columns; c += kUnroll * kLanes) {
      ReduceStep<T, kUnroll, false>(dy_row, x_row, rows, panel.stride,
                                    panel.ahead, c, 0, sums);
    }
    for (; c + kLanes <= panel.columns; c += kLanes) {
      ReduceStep<T, 1, false>(dy_row, x_row, rows, panel.stride, panel.ahead, c,
                              0, sums);
    }
    if (c < panel.columns) {
      ReduceStep<T, 1, true>(dy_row, x_row, rows, panel.stride, panel.ahead, c,
                             static_cast<int>(panel.columns - c), sums);
    }
  }
}

void ClearColumns(int64_t columns, ColumnSums& sums) {
  for (int64_t c = 0; c < columns; ++c) {
    sums.dy[c] = 0;
    sums.dy_xmu[c] = 0;
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

// Adds the columns of `channels` channels, each `per_channel` neighbours, to
// `dy` and `dy_xmu`.
void FlushColumns(const ColumnSums& sums, int64_t first, int64_t channels,
                  int64_t per_channel, double* dy, double* dy_xmu) {
  if (per_channel == 1) {  // The same, in a loop that vectorizes.
    for (int64_t c = 0; c < channels; ++c) {
      dy[c] += sums.dy[first + c];
      dy_xmu[c] += sums.dy_xmu[first + c];
    }
    return;
  }
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t at = first + c * per_channel;
    dy[c] += AddColumns(sums.dy + at, per_channel);
    dy_xmu[c] += AddColumns(sums.dy_xmu + at, per_channel);
  }
}

// Rows of a tile: whole rows of `fold` outer indices, then one row of what is
// left.
struct RowPanels {
  Panel whole, rest;
};

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
       partition.fold * columns == stride ? 0 : stride},
      {at + whole * stride, 1, stride, count % partition.fold * columns}};
}

template <typename T>
void Reduce(const BatchNormGradArgs& args, const Partition& partition,
            const Tile& tile, const ChannelSums& out) {
  const T* dy = static_cast<const T*>(args.y_backprop);
  const T* x = static_cast<const T*>(args.x);
  const View& view = args.view;
  const int64_t channels = tile.c1 - tile.c0;
  ColumnSums sums;
  for (int64_t c = tile.c0; c < tile.c1; ++c) {
    out.dy[c] = 0;
    out.dy_xmu[c] = 0;
  }
  if (partition.kind == Partition::kRows) {
    const RowPanels panels = PanelsOf(view, partition, tile);
    const int64_t row_columns = channels * view.inner;
    const int64_t columns = partition.fold * row_columns;
    if (view.inner == 1) {
      LoadAsDoubles(args.stat_dtype, args.mean, tile.c0, channels, sums.mean);
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        const double mean =
            LoadAsDouble(args.stat_dtype, args.mean, tile.c0 + c);
        for (int64_t i = 0; i < view.inner; ++i) {
          sums.mean[c * view.inner + i] = mean;
        }
      }
    }
    for (int64_t column = row_columns; column < columns; ++column) {
      sums.mean[column] = sums.mean[column - row_columns];
    }
    for (int64_t r = 0; r <= panels.whole.rows; r += kChainRows) {
      Panel chain = panels.whole;
      chain.at += r * chain.stride;
      chain.rows -= r;
      const bool last = chain.rows <= kChainRows;
      if (!last) chain.rows = kChainRows;
      ClearColumns(columns, sums);
      ReduceRows(dy, x, chain, sums);
      if (last && panels.rest.columns > 0) {
        ReduceRows(dy, x, panels.rest, sums);
      }
      for (int64_t f = 0; f < partition.fold; ++f) {
        FlushColumns(sums, f * row_columns, channels, view.inner,
                     out.dy + tile.c0, out.dy_xmu + tile.c0);
      }
      if (last) break;
    }
    return;
  }
  const int64_t length = tile.block.i1 - tile.block.i0;
  const int64_t runs = length / kRunColumns;
  const int64_t tail = length % kRunColumns;
  for (int64_t c = tile.c0; c < tile.c1; ++c) {
    const double mean = LoadAsDouble(args.stat_dtype, args.mean, c);
    for (int64_t column = 0; column < kRunColumns; ++column) {
      sums.mean[column] = mean;
    }
    ClearColumns(kRunColumns, sums);
    int64_t chain = 0;
    for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
      const int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
      for (int64_t r = 0; r < runs;) {
        const int64_t left = kChainRows - chain;
        const int64_t rows = runs - r < left ? runs - r : left;
        ReduceRows(dy, x,
                   Panel{at + r * kRunColumns, rows, kRunColumns, kRunColumns,
                         kPrefetchBytes / static_cast<int64_t>(sizeof(T))},
                   sums);
        r += rows;
        chain += rows;
        if (chain == kChainRows) {
          FlushColumns(sums, 0, 1, kRunColumns, out.dy + c, out.dy_xmu + c);
          ClearColumns(kRunColumns, sums);
          chain = 0;
        }
      }
      if (tail > 0) {
        ReduceRows(dy, x, Panel{at + runs * kRunColumns, 1, kRunColumns, tail},
                   sums);
      }
    }
    FlushColumns(sums, 0, 1, kRunColumns, out.dy + c, out.dy_xmu + c);
  }
}

// -----------------------------------------------------------------------------
// Coefficients

template <typename T>
void Coefficients(const BatchNormGradArgs& args, int64_t c0, int64_t c1,
                  const ChannelSums& sums, void* coefficients) {
  using C = typename Compute<T>::Scalar;
  const int64_t stride = CoefficientStride(args.view.channels);
  const double m = static_cast<double>(ElementsPerChannel(args.view));
  for (int64_t c = c0; c < c1; ++c) {
    const double rstd = Rstd(args, c);
    const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
    C* const out = static_cast<C*>(coefficients) + c;
    out[kScaleRstd * stride] = static_cast<C>(scale * rstd);
    if (!args.is_training) continue;  // Nothing else is used, nor are the sums.
    const double dy_mean = sums.dy[c] / m;
    const C dy_mean_part = static_cast<C>(dy_mean);
    // Infinity minus infinity would be NaN where the sum itself is a plain
    // infinity.
    const bool finite = dy_mean - dy_mean == 0;
    out[kMean * stride] =
        static_cast<C>(LoadAsDouble(args.stat_dtype, args.mean, c));
    out[kRstd * stride] = static_cast<C>(rstd);
    out[kDyMean * stride] = dy_mean_part;
    out[kDyMeanRest * stride] =
        finite ? static_cast<C>(dy_mean - static_cast<double>(dy_mean_part))
               : C{0};
    out[kXhatDyMean * stride] = static_cast<C>(rstd * sums.dy_xmu[c] / m);
  }
}

// -----------------------------------------------------------------------------
// Apply

// Coefficient k of column c is column[k * stride + c].
template <typename C>
struct ColumnCoefficients {
  const C* column;
  int64_t stride;
};

// For kUnrollHere vectors of columns and all `rows`:
//
//   frozen:    out[r][c] = scale_rstd[c] * dy[r][c]
//   training:  out[r][c] = scale_rstd[c]
//                          * (((dy[r][c] - dy_mean[c]) - dy_mean_rest[c])
//                             - ((x[r][c] - mean[c]) * rstd[c])
//                               * xhat_dy_mean[c])
template <typename T, int kUnrollHere, bool kPartial, bool kTraining,
          bool kStream>
TFBN_INLINE void ApplyStep(
    const T* dy, const T* x, T* out, int64_t rows, int64_t stride,
    int64_t ahead, int64_t c, int n,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  using V = typename Compute<T>::Vector;
  constexpr int kLanes = Compute<T>::kLanes;
  V k[kNumCoefficients][kUnrollHere];
  for (int i = kTraining ? 0 : kScaleRstd; i < kNumCoefficients; ++i) {
    for (int u = 0; u < kUnrollHere; ++u) {
      k[i][u] =
          Load(coefficients.column + i * coefficients.stride + c + u * kLanes);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (!kPartial && ahead != 0) {
      Prefetch<T, kUnrollHere, kSecondLevel>(dy + r * stride + c + ahead);
      Prefetch<T, kUnrollHere, kSecondLevel>(x + r * stride + c + ahead);
    }
    for (int u = 0; u < kUnrollHere; ++u) {
      const int64_t at = r * stride + c + u * kLanes;
      V v = kPartial ? LoadPartial(dy + at, n) : Load(dy + at);
      if (kTraining) {
        const V x_vector = kPartial ? LoadPartial(x + at, n) : Load(x + at);
        v = ((v - k[kDyMean][u]) - k[kDyMeanRest][u]) -
            ((x_vector - k[kMean][u]) * k[kRstd][u]) * k[kXhatDyMean][u];
      }
      v = k[kScaleRstd][u] * v;
      if (kPartial) {
        StorePartial(out + at, v, n);
      } else if (kStream) {
        Stream(out + at, v);
      } else {
        Store(out + at, v);
      }
    }
  }
}

template <typename T, bool kTraining, bool kStream>
void ApplyRows(
    const T* dy, const T* x, T* out, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  constexpr int kLanes = Compute<T>::kLanes;
  const int64_t rows = RowsAtOnce<T>(panel);
  for (int64_t r = 0; r < panel.rows; r += rows) {
    const int64_t at = panel.at + r * panel.stride;
    int64_t c = 0;
    for (; c + kUnroll * kLanes <= panel.columns; c += kUnroll * kLanes) {
      ApplyStep<T, kUnroll, false, kTraining, kStream>(
          dy + at, x + at, out + at, rows, panel.stride, panel.ahead, c, 0,
          coefficients);
    }
    for (; c + kLanes <= panel.columns; c += kLanes) {
      ApplyStep<T, 1, false, kTraining, kStream>(
          dy + at, x + at, out + at, rows, panel.stride, panel.ahead, c, 0,
          coefficients);
    }
    if (c < panel.columns) {
      ApplyStep<T, 1, true, kTraining, kStream>(
          dy + at, x + at, out + at, rows, panel.stride, panel.ahead, c,
          static_cast<int>(panel.columns - c), coefficients);
    }
  }
}

template <typename T>
void ApplyPanel(
    const BatchNormGradArgs& args, const Panel& panel, bool stream,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  if (panel.rows == 0 || panel.columns == 0) return;
  const T* dy = static_cast<const T*>(args.y_backprop);
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.x_backprop);
  // Streaming stores want whole, aligned vectors; every row of a panel has the
  // same alignment or the panel is stored the ordinary way.
  const bool aligned =
      reinterpret_cast<uintptr_t>(out + panel.at) % kCacheLineBytes == 0 &&
      (panel.rows == 1 || panel.stride * sizeof(T) % kCacheLineBytes == 0);
  if (args.is_training) {
    if (stream && aligned) {
      ApplyRows<T, true, true>(dy, x, out, panel, coefficients);
    } else {
      ApplyRows<T, true, false>(dy, x, out, panel, coefficients);
    }
  } else {
    if (stream && aligned) {
      ApplyRows<T, false, true>(dy, x, out, panel, coefficients);
    } else {
      ApplyRows<T, false, false>(dy, x, out, panel, coefficients);
    }
  }
}

template <typename T>
void Apply(const BatchNormGradArgs& args, const Partition& partition,
           const Tile& tile, const void* coefficients, bool stream) {
  using C = typename Compute<T>::Scalar;
  const View& view = args.view;
  const C* const by_channel = static_cast<const C*>(coefficients);
  // Coefficients of columns, where a channel has more than one.
  alignas(kCacheLineBytes) C expanded[kNumCoefficients * kPaddedColumns];
  const auto expand = [&](int64_t c, int64_t first, int64_t n) {
    for (int k = 0; k < kNumCoefficients; ++k) {
      const C value = by_channel[k * CoefficientStride(view.channels) + c];
      for (int64_t i = first; i < first + n; ++i) {
        expanded[k * kPaddedColumns + i] = value;
      }
    }
  };
  ColumnCoefficients<C> columns = {expanded, kPaddedColumns};
  if (partition.kind == Partition::kRows) {
    RowPanels panels = PanelsOf(view, partition, tile);
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
    ApplyPanel<T>(args, panels.whole, stream, columns);
    ApplyPanel<T>(args, panels.rest, stream, columns);
  } else {
    const int64_t length = tile.block.i1 - tile.block.i0;
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      expand(c, 0, kRunColumns);
      for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
        int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
        int64_t left = length;
        const T* out = static_cast<const T*>(args.x_backprop) + at;
        const int64_t misaligned =
            reinterpret_cast<uintptr_t>(out) % kCacheLineBytes;
        if (stream && misaligned != 0) {
          // A short first row makes all others aligned.
          int64_t head =
              (kCacheLineBytes - misaligned) / static_cast<int64_t>(sizeof(T));
          if (head > left) head = left;
          ApplyPanel<T>(args, Panel{at, 1, kRunColumns, head}, false, columns);
          at += head;
          left -= head;
        }
        const int64_t runs = left / kRunColumns;
        ApplyPanel<T>(args,
                      Panel{at, runs, kRunColumns, kRunColumns, tile.next},
                      stream, columns);
        ApplyPanel<T>(
            args,
            Panel{at + runs * kRunColumns, 1, kRunColumns, left % kRunColumns},
            stream, columns);
      }
    }
  }
  if (stream) StreamFence();
}

}  // namespace

#define TFBN_CONCAT_(a, b) a##b
#define TFBN_CONCAT(a, b) TFBN_CONCAT_(a, b)
#define TFBN_GET_KERNELS TFBN_CONCAT(GetKernels_, TF_BN_OPS_ISA)

const Kernels& TFBN_GET_KERNELS();

// Entries in the order of DType.
const Kernels& TFBN_GET_KERNELS() {
  static constexpr Kernels kKernels = {
      {Reduce<float>, Reduce<Float16>, Reduce<Bfloat16>, Reduce<double>},
      {Coefficients<float>, Coefficients<Float16>, Coefficients<Bfloat16>,
       Coefficients<double>},
      {Apply<float>, Apply<Float16>, Apply<Bfloat16>, Apply<double>},
  };
  return kKernels;
}

}  // namespace tf_bn_ops
