// The CPU kernels of the batch-norm gradient: one source for all layouts and
// element types, compiled once for every line of isa_builds.txt with
// TF_BN_OPS_ISA set to its name.
//
// The results of all builds are equal to the bit: sums run down columns in an
// order that does not depend on the width of a vector, and no multiplication is
// fused with an addition.

#include "cc/cpu/isa/kernels.h"

#include "cc/cpu/isa/vec.h"

#ifndef TF_BN_OPS_ISA
#error "TF_BN_OPS_ISA names this build, see isa_builds.txt"
#endif

namespace tf_bn_ops {
namespace {

// Vectors per step along a row. A full cache line of float output is written at
// a time, and with AVX-512, which has twice the registers, two of them.
#if defined(__AVX512F__)
constexpr int kUnroll = 2;
#else
constexpr int kUnroll = kCacheLineBytes / kVectorBytes;
#endif

// Column arrays are read in whole vectors.
constexpr int64_t kPaddedColumns = kMaxColumns + kMaxColumns / 16;

// Running sums and the mean of each column.
struct ColumnSums {
  alignas(kCacheLineBytes) double mean[kPaddedColumns];
  alignas(kCacheLineBytes) double dy[kPaddedColumns];
  alignas(kCacheLineBytes) double dy_xmu[kPaddedColumns];
};

// Coefficients of x_backprop for each column, in the type that it is computed
// in.
template <typename C>
struct ColumnCoefficients {
  alignas(kCacheLineBytes) C mean[kPaddedColumns];
  alignas(kCacheLineBytes) C rstd[kPaddedColumns];
  // Mean of y_backprop in two parts, so that y_backprop - mean loses nothing to
  // cancellation when the mean is large against the differences.
  alignas(kCacheLineBytes) C dy_mean[kPaddedColumns];
  alignas(kCacheLineBytes) C dy_mean_rest[kPaddedColumns];
  alignas(kCacheLineBytes) C
      xhat_dy_mean[kPaddedColumns];  // scale_backprop / M
  alignas(kCacheLineBytes) C scale_rstd[kPaddedColumns];
};

// Rows of `columns` contiguous elements, `stride` elements apart, starting at
// element `at` of the tensors.
struct Panel {
  int64_t at, rows, stride, columns;
};

// --- Reduce
// ---------------------------------------------------------------------------------------

// For kUnrollHere vectors of columns and `rows` <= kRowGroup rows:
//
//   dy_sum  = sum over rows of dy[r][c]
//   xmu_sum = sum over rows of dy[r][c] * (x[r][c] - mean[c])
//   sums.dy[c] += dy_sum;  sums.dy_xmu[c] += xmu_sum
template <typename T, int kUnrollHere, bool kPartial>
TFBN_INLINE void ReduceStep(const T* dy, const T* x, int64_t rows,
                            int64_t stride, int64_t c, int n,
                            ColumnSums& sums) {
  using Wide = decltype(Widen(Load(dy)));
  constexpr int kLanes = Compute<T>::kLanes;
  constexpr int kVectors = kUnrollHere * Wide::kParts;
  VD mean[kVectors], dy_sum[kVectors], xmu_sum[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    mean[v] = Load(sums.mean + c + v * kDoubleLanes);
    dy_sum[v] = VD{};
    xmu_sum[v] = VD{};
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * stride + c;
    for (int u = 0; u < kUnrollHere; ++u) {
      const Wide dy_wide = Widen(kPartial ? LoadPartial(dy + at, n)
                                          : Load(dy + at + u * kLanes));
      const Wide x_wide =
          Widen(kPartial ? LoadPartial(x + at, n) : Load(x + at + u * kLanes));
      for (int p = 0; p < Wide::kParts; ++p) {
        const int v = u * Wide::kParts + p;
        dy_sum[v] += dy_wide.part[p];
        xmu_sum[v] += dy_wide.part[p] * (x_wide.part[p] - mean[v]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    double* sum_dy = sums.dy + c + v * kDoubleLanes;
    double* sum_xmu = sums.dy_xmu + c + v * kDoubleLanes;
    Store(sum_dy, Load(sum_dy) + dy_sum[v]);
    Store(sum_xmu, Load(sum_xmu) + xmu_sum[v]);
  }
}

template <typename T>
void ReducePanel(const T* dy, const T* x, const Panel& panel,
                 ColumnSums& sums) {
  constexpr int kLanes = Compute<T>::kLanes;
  for (int64_t r = 0; r < panel.rows; r += kRowGroup) {
    const int64_t rows =
        panel.rows - r < kRowGroup ? panel.rows - r : kRowGroup;
    const T* dy_row = dy + panel.at + r * panel.stride;
    const T* x_row = x + panel.at + r * panel.stride;
    int64_t c = 0;
    for (; c + kUnroll * kLanes <= panel.columns; c += kUnroll * kLanes) {
      ReduceStep<T, kUnroll, false>(dy_row, x_row, rows, panel.stride, c, 0,
                                    sums);
    }
    for (; c + kLanes <= panel.columns; c += kLanes) {
      ReduceStep<T, 1, false>(dy_row, x_row, rows, panel.stride, c, 0, sums);
    }
    if (c < panel.columns) {
      ReduceStep<T, 1, true>(dy_row, x_row, rows, panel.stride, c,
                             static_cast<int>(panel.columns - c), sums);
    }
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

void ClearColumns(int64_t columns, ColumnSums& sums) {
  for (int64_t c = 0; c < columns; ++c) {
    sums.dy[c] = 0;
    sums.dy_xmu[c] = 0;
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
      {at, whole, stride, partition.fold * columns},
      {at + whole * stride, 1, stride, count % partition.fold * columns}};
}

template <typename T>
void Reduce(const BatchNormGradArgs& args, const Partition& partition,
            const Tile& tile, const ChannelSums& out) {
  const T* dy = static_cast<const T*>(args.y_backprop);
  const T* x = static_cast<const T*>(args.x);
  const View& view = args.view;
  ColumnSums sums;
  if (partition.kind == Partition::kRows) {
    const RowPanels panels = PanelsOf(view, partition, tile);
    const int64_t row_columns = (tile.c1 - tile.c0) * view.inner;
    const int64_t columns = partition.fold * row_columns;
    int64_t column = 0;
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      const double mean = LoadAsDouble(args.stat_dtype, args.mean, c);
      for (int64_t i = 0; i < view.inner; ++i) sums.mean[column++] = mean;
    }
    for (; column < columns; ++column)
      sums.mean[column] = sums.mean[column - row_columns];
    ClearColumns(columns, sums);
    ReducePanel(dy, x, panels.whole, sums);
    ReducePanel(dy, x, panels.rest, sums);
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      out.dy[c] = 0;
      out.dy_xmu[c] = 0;
      for (int64_t f = 0; f < partition.fold; ++f) {
        const int64_t first = f * row_columns + (c - tile.c0) * view.inner;
        out.dy[c] += AddColumns(sums.dy + first, view.inner);
        out.dy_xmu[c] += AddColumns(sums.dy_xmu + first, view.inner);
      }
    }
    return;
  }
  const int64_t length = tile.block.i1 - tile.block.i0;
  for (int64_t c = tile.c0; c < tile.c1; ++c) {
    const double mean = LoadAsDouble(args.stat_dtype, args.mean, c);
    for (int64_t column = 0; column < kRunColumns; ++column)
      sums.mean[column] = mean;
    ClearColumns(kRunColumns, sums);
    for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
      const int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
      const int64_t runs = length / kRunColumns;
      ReducePanel(dy, x, Panel{at, runs, kRunColumns, kRunColumns}, sums);
      ReducePanel(
          dy, x,
          Panel{at + runs * kRunColumns, 1, kRunColumns, length % kRunColumns},
          sums);
    }
    out.dy[c] = AddColumns(sums.dy, kRunColumns);
    out.dy_xmu[c] = AddColumns(sums.dy_xmu, kRunColumns);
  }
}

// --- Apply
// ----------------------------------------------------------------------------------------

// For kUnrollHere vectors of columns and `rows` rows:
//
//   frozen:    out[r][c] = scale_rstd[c] * dy[r][c]
//   training:  out[r][c] = scale_rstd[c] * (((dy[r][c] - dy_mean[c]) -
//   dy_mean_rest[c])
//                          - ((x[r][c] - mean[c]) * rstd[c]) * xhat_dy_mean[c])
template <typename T, int kUnrollHere, bool kPartial, bool kTraining,
          bool kStream>
TFBN_INLINE void ApplyStep(
    const T* dy, const T* x, T* out, int64_t rows, int64_t stride, int64_t c,
    int n,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  using V = typename Compute<T>::Vector;
  constexpr int kLanes = Compute<T>::kLanes;
  V mean[kUnrollHere], rstd[kUnrollHere], dy_mean[kUnrollHere],
      dy_mean_rest[kUnrollHere], xhat_dy_mean[kUnrollHere],
      scale_rstd[kUnrollHere];
  for (int u = 0; u < kUnrollHere; ++u) {
    const int64_t at = c + u * kLanes;
    scale_rstd[u] = Load(coefficients.scale_rstd + at);
    if (!kTraining) continue;
    mean[u] = Load(coefficients.mean + at);
    rstd[u] = Load(coefficients.rstd + at);
    dy_mean[u] = Load(coefficients.dy_mean + at);
    dy_mean_rest[u] = Load(coefficients.dy_mean_rest + at);
    xhat_dy_mean[u] = Load(coefficients.xhat_dy_mean + at);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int u = 0; u < kUnrollHere; ++u) {
      const int64_t at = r * stride + c + u * kLanes;
      V v = kPartial ? LoadPartial(dy + at, n) : Load(dy + at);
      if (kTraining) {
        const V x_vector = kPartial ? LoadPartial(x + at, n) : Load(x + at);
        v = ((v - dy_mean[u]) - dy_mean_rest[u]) -
            ((x_vector - mean[u]) * rstd[u]) * xhat_dy_mean[u];
      }
      v = scale_rstd[u] * v;
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
void ApplyPanel(
    const T* dy, const T* x, T* out, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  constexpr int kLanes = Compute<T>::kLanes;
  for (int64_t r = 0; r < panel.rows; r += kRowGroup) {
    const int64_t rows =
        panel.rows - r < kRowGroup ? panel.rows - r : kRowGroup;
    const int64_t at = panel.at + r * panel.stride;
    int64_t c = 0;
    for (; c + kUnroll * kLanes <= panel.columns; c += kUnroll * kLanes) {
      ApplyStep<T, kUnroll, false, kTraining, kStream>(
          dy + at, x + at, out + at, rows, panel.stride, c, 0, coefficients);
    }
    for (; c + kLanes <= panel.columns; c += kLanes) {
      ApplyStep<T, 1, false, kTraining, kStream>(
          dy + at, x + at, out + at, rows, panel.stride, c, 0, coefficients);
    }
    if (c < panel.columns) {
      ApplyStep<T, 1, true, kTraining, kStream>(
          dy + at, x + at, out + at, rows, panel.stride, c,
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
      (reinterpret_cast<uintptr_t>(out + panel.at) % kCacheLineBytes == 0) &&
      (panel.rows == 1 || panel.stride * sizeof(T) % kCacheLineBytes == 0);
  if (args.is_training) {
    if (stream && aligned) {
      ApplyPanel<T, true, true>(dy, x, out, panel, coefficients);
    } else {
      ApplyPanel<T, true, false>(dy, x, out, panel, coefficients);
    }
  } else {
    if (stream && aligned) {
      ApplyPanel<T, false, true>(dy, x, out, panel, coefficients);
    } else {
      ApplyPanel<T, false, false>(dy, x, out, panel, coefficients);
    }
  }
}

// Sets the coefficients of channel `c` for columns [first, first + n).
template <typename C>
void SetCoefficients(const BatchNormGradArgs& args, const ChannelSums& sums,
                     int64_t c, int64_t first, int64_t n,
                     ColumnCoefficients<C>& coefficients) {
  const double m = static_cast<double>(ElementsPerChannel(args.view));
  const double rstd = Rstd(args, c);
  const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
  const double dy_mean = sums.dy[c] / m;
  const C mean_part =
      static_cast<C>(LoadAsDouble(args.stat_dtype, args.mean, c));
  const C rstd_part = static_cast<C>(rstd);
  const C dy_mean_part = static_cast<C>(dy_mean);
  // Infinity minus infinity would be NaN where the sum itself is a plain
  // infinity.
  const bool finite = dy_mean - dy_mean == 0;
  const C rest_part =
      finite ? static_cast<C>(dy_mean - static_cast<double>(dy_mean_part))
             : C{0};
  const C xhat_part = static_cast<C>(rstd * sums.dy_xmu[c] / m);
  const C scale_part = static_cast<C>(scale * rstd);
  for (int64_t i = first; i < first + n; ++i) {
    coefficients.mean[i] = mean_part;
    coefficients.rstd[i] = rstd_part;
    coefficients.dy_mean[i] = dy_mean_part;
    coefficients.dy_mean_rest[i] = rest_part;
    coefficients.xhat_dy_mean[i] = xhat_part;
    coefficients.scale_rstd[i] = scale_part;
  }
}

template <typename T>
void Apply(const BatchNormGradArgs& args, const Partition& partition,
           const Tile& tile, const ChannelSums& sums, bool stream) {
  const View& view = args.view;
  ColumnCoefficients<typename Compute<T>::Scalar> coefficients;
  if (partition.kind == Partition::kRows) {
    const RowPanels panels = PanelsOf(view, partition, tile);
    const int64_t row_columns = (tile.c1 - tile.c0) * view.inner;
    for (int64_t f = 0; f < partition.fold; ++f) {
      for (int64_t c = tile.c0; c < tile.c1; ++c) {
        SetCoefficients(args, sums, c,
                        f * row_columns + (c - tile.c0) * view.inner,
                        view.inner, coefficients);
      }
    }
    ApplyPanel<T>(args, panels.whole, stream, coefficients);
    ApplyPanel<T>(args, panels.rest, stream, coefficients);
  } else {
    const int64_t length = tile.block.i1 - tile.block.i0;
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      SetCoefficients(args, sums, c, 0, kRunColumns, coefficients);
      for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
        int64_t at = (o * view.channels + c) * view.inner + tile.block.i0;
        int64_t left = length;
        const T* out = static_cast<const T*>(args.x_backprop) + at;
        const int64_t misaligned =
            reinterpret_cast<uintptr_t>(out) % kCacheLineBytes;
        if (stream &&
            misaligned != 0) {  // A short first row makes all others aligned.
          int64_t head =
              (kCacheLineBytes - misaligned) / static_cast<int64_t>(sizeof(T));
          if (head > left) head = left;
          ApplyPanel<T>(args, Panel{at, 1, kRunColumns, head}, false,
                        coefficients);
          at += head;
          left -= head;
        }
        const int64_t runs = left / kRunColumns;
        ApplyPanel<T>(args, Panel{at, runs, kRunColumns, kRunColumns}, stream,
                      coefficients);
        ApplyPanel<T>(
            args,
            Panel{at + runs * kRunColumns, 1, kRunColumns, left % kRunColumns},
            stream, coefficients);
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
      {Apply<float>, Apply<Float16>, Apply<Bfloat16>, Apply<double>},
  };
  return kKernels;
}

}  // namespace tf_bn_ops
