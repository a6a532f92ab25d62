// Panels: the rectangles of rows and columns that both passes walk through, and
// the steps that they are cut into.

#ifndef TF_BN_OPS_CC_CPU_ISA_PANEL_H_
#define TF_BN_OPS_CC_CPU_ISA_PANEL_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/partition.h"
#include "cc/core/view.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// Behind the values of each column: room for loads of whole vectors, and so
// much that arrays of 64 or 1024 columns do not lie a multiple of 4 KiB apart
// (see CoefficientStride).
constexpr int64_t kColumnPadding = 64;

// Writes the value of each channel to all of its columns: a cache line at a
// time, whose loop the compiler unrolls, then the rest.
template <typename C>
void SpreadChannels(const C* by_channel, int64_t channels, int64_t per_channel,
                    C* columns) {
  constexpr int64_t kLine = kCacheLineBytes / sizeof(C);
  for (int64_t c = 0; c < channels; ++c) {
    const C value = by_channel[c];
    int64_t i = 0;
    for (; i + kLine <= per_channel; i += kLine) {
      for (int64_t j = 0; j < kLine; ++j) columns[i + j] = value;
    }
    for (; i < per_channel; ++i) columns[i] = value;
    columns += per_channel;
  }
}
// Repeats the first `columns` of an array until there are `total`.
template <typename C>
void RepeatColumns(int64_t columns, int64_t total, C* array) {
  for (int64_t done = columns; done < total;) {
    const int64_t n = done < total - done ? done : total - done;
    std::memcpy(array + done, array, n * sizeof(C));
    done += n;
  }
}

// The tensors of view shape, as elements.
template <typename F, typename T>
struct TensorPointers {
  const T* in[F::kInputs];
  T* out[F::kOutputs];
  bool in_place[F::kOutputs];  // Whether an output is the buffer of an input.
};

template <typename F, typename T>
TensorPointers<F, T> PointersOf(const typename F::Args& args) {
  const auto tensors = F::TensorsOf(args);
  TensorPointers<F, T> pointers;
  for (int i = 0; i < F::kInputs; ++i) {
    pointers.in[i] = static_cast<const T*>(tensors.in[i]);
  }
  for (int i = 0; i < F::kOutputs; ++i) {
    pointers.out[i] = static_cast<T*>(tensors.out[i]);
    pointers.in_place[i] = IsInPlace(tensors, i);
  }
  return pointers;
}

// Rows of `columns` contiguous elements, `row_stride` elements apart.
struct Panel {
  int64_t first_element;  // Of the tensors: row 0, column 0.
  int64_t rows, row_stride, columns;
  PrefetchOffsets prefetch = {};
  int64_t first_column = 0;  // Columns before it are left out.

  // Its first rows, at most `most`.
  Panel FirstRows(int64_t most) const {
    Panel first = *this;
    if (rows > most) first.rows = most;
    return first;
  }
  // Leaves out the first `n` rows, or all.
  void SkipRows(int64_t n) {
    first_element += n * row_stride;
    rows = rows > n ? rows - n : 0;
    prefetch.far_row -= n;
  }
};

// The rows of a tile in kRows: `full` rows of `fold` outer indices, then one
// row of those that remain.
struct RowPanels {
  Panel full, remainder;
};

template <typename T>
RowPanels RowPanelsOf(const View& view, const Partition& partition,
                      const Tile& tile) {
  const int64_t outer_stride = view.channels * view.inner;
  const int64_t outer_columns = (tile.c1 - tile.c0) * view.inner;
  const int64_t outers = tile.block.o1 - tile.block.o0;
  const int64_t rows = outers / partition.fold;
  const int64_t columns = partition.fold * outer_columns;
  const int64_t stride = partition.fold * outer_stride;
  const int64_t first = tile.block.o0 * outer_stride + tile.c0 * view.inner;
  return RowPanels{{first, rows, stride, columns,
                    PanelPrefetch<T>(tile, rows, columns, stride)},
                   {first + rows * stride, 1, stride,
                    outers % partition.fold * outer_columns}};
}

// A part of a panel: `rows` rows of a few vectors of columns from `column` on,
// which are in registers meanwhile.
struct Step {
  int64_t first_element;  // Row 0, column 0.
  int64_t rows, row_stride, prefetch_offset, column;
  int partial_lanes;  // Columns of a partial vector.
};

// Prefetches for kVectors vectors of a row of a step, from `element` on.
template <int kVectors, typename F, typename T>
TFBN_INLINE void PrefetchRow(const TensorPointers<F, T>& tensors,
                             const Step& step, int64_t element) {
  if (step.prefetch_offset == 0) return;
  for (int i = 0; i < F::kInputs; ++i) {
    const T* const read = tensors.in[i] + element;
    Prefetch<T, kVectors>(read + step.prefetch_offset);
  }
}

// Whether a vector is a cache line, as with AVX-512.
constexpr bool kVectorIsLine = kVectorBytes == kCacheLineBytes;

// Vectors that hold a cache line of elements.
template <typename T>
constexpr int kLineVectors =
    kCacheLineBytes / static_cast<int>(sizeof(T)) / kLanesOf<T>;

// Vectors in a step of a pass that keeps `values` values per column in
// registers: as many as fit into `registers` of them. With the 32 registers of
// AVX-512 a run of kRunColumns floats is one step.
constexpr int VectorsPerStep(int values, int registers) {
  int vectors = kRegisters / 8;
  while (vectors > 1 && vectors * values > registers) --vectors;
  return vectors;
}

// More rows in a step gained nothing. Of narrow elements a step has whole runs
// of two-level sums.
constexpr int kMaxRowsPerStep = 8;
static_assert(kMaxRowsPerStep % kTwoLevelRun == 0,
              "a step would end within a run, and change bits");

// How many rows the steps of a pass have.
struct StepRows {
  int least, most = kMaxRowsPerStep;
  // The steps that prefetch within the panel have a multiple of so many rows in
  // sum, as those of two-level sums must.
  int multiple = 1;
};

// Rows in a step. Running sums and coefficients stay in registers, or side by
// side on the stack, for all of them, which saves up to two thirds of the
// accesses to L1. All rows when the step is as wide as a row, for then they are
// read in order of addresses; else at most kStepBytes, but the least number of
// rows.
template <typename T, int kVectors>
TFBN_INLINE int64_t RowsPerStep(const Panel& panel, const StepRows& rows) {
  if (panel.columns == kVectors * kLanesOf<T>) return panel.rows;
  const int64_t fit =
      kStepBytes / (panel.row_stride * static_cast<int64_t>(sizeof(T)));
  return fit < rows.least ? rows.least : fit < rows.most ? fit : rows.most;
}

// Cuts a panel into steps: function(vectors, partial, step), where `vectors` is
// the number of vectors as a constant, and `partial` whether it is one partial
// vector.
template <typename T, int kVectors, typename Function>
TFBN_INLINE void ForEachStep(const Panel& panel, const StepRows& step_rows,
                             const Function& function) {
  constexpr int kLanes = kLanesOf<T>;
  constexpr std::integral_constant<int, kVectors> kMany{};
  constexpr std::integral_constant<int, 1> kOne{};
  const int64_t rows_per_step = RowsPerStep<T, kVectors>(panel, step_rows);
  // One or two parts, which prefetch differently.
  const int64_t far_row = (panel.prefetch.far_row + step_rows.multiple - 1) /
                          step_rows.multiple * step_rows.multiple;
  for (int64_t r = 0, rows = 0; r < panel.rows; r += rows) {
    const bool near = r < far_row;
    const int64_t end = near && far_row < panel.rows ? far_row : panel.rows;
    rows = end - r < rows_per_step ? end - r : rows_per_step;
    Step step{panel.first_element + r * panel.row_stride,
              rows,
              panel.row_stride,
              near ? panel.prefetch.near : panel.prefetch.far,
              panel.first_column,
              0};
    int64_t& c = step.column;
    for (; c + kVectors * kLanes <= panel.columns; c += kVectors * kLanes) {
      function(kMany, std::false_type(), step);
    }
    for (; c + kLanes <= panel.columns; c += kLanes) {
      function(kOne, std::false_type(), step);
    }
    if (c < panel.columns) {
      step.partial_lanes = static_cast<int>(panel.columns - c);
      function(kOne, std::true_type(), step);
    }
  }
}

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_PANEL_H_
