// What a block of threads does in each of the three kernels. Device code and,
// as plain C++, host code: cc/cuda/testing/emulator.cc runs the same programs
// thread by thread, so indices and arithmetic are tested without a GPU.
//
// A program is a sequence of phases, Block::ForEach(f): f(t) for every thread
// t, then a barrier. Nothing but shared memory lives from one phase to the
// next.
//
// The formula is that of cc/core/formulas, as on the CPU, and nothing is fused
// (nvcc -fmad=false): a GPU gives the bits that the emulator gives.

#ifndef TF_BN_OPS_CC_CUDA_PROGRAMS_H_
#define TF_BN_OPS_CC_CUDA_PROGRAMS_H_

#include <cmath>
#include <cstdint>

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/cuda/element.h"
#include "cc/cuda/geometry.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Coefficient i of channel c is coefficients[i * channels + c].
using Formula = BatchNormGradFormula;
constexpr int kNumCoefficients = Formula::kNumCoefficients;

// The one coefficient that frozen statistics need.
template <typename C>
TFBN_HD C ScaleRstdOf(const BatchNormGradArgs& args, int64_t c) {
  const double no_sums[Formula::kNumSums] = {};
  C k[kNumCoefficients];
  Formula::Finish(args, c, 0, no_sums, k);
  return k[Formula::kScaleRstd];
}

// What a kernel is given.
struct Params {
  BatchNormGradArgs args;
  Geometry geometry;
  // [sum of dy, of dy * (x - mean)][geometry.blocks][geometry.Columns()]
  double* partials = nullptr;
  void* coefficients = nullptr;  // [kNumCoefficients][channels]
  // The channels of a launch of Finish.
  int64_t first_channel = 0;
  int64_t end_channel = 0;
};

// One vector of a thread's way: elements [lo, hi) of those at `at` are its own.
struct Piece {
  int64_t at;
  int lo, hi;
};

// A thread's way through its block's range of items.
template <typename T, bool kRows>
class Walk {
 public:
  static constexpr int kVector = ElementOf<T>::kVector;

  TFBN_HD Walk(const Geometry& g, int64_t block, int thread)
      : g_(g),
        tile_(g.TileOf(block)),
        lane_(thread % g.lanes),
        k_(thread / g.lanes % g.channels),
        z_(thread / (g.lanes * g.channels)) {
    const int64_t range = g.RangeOf(block);
    item_ = g.items * range / g.blocks + z_;
    end_ = g.items * (range + 1) / g.blocks;
    if (kRows) {
      column_vector_ = tile_ * g.lanes + lane_;
      active_ = z_ < g.item_lanes && column_vector_ < g.row_vectors;
    } else {
      channel_ = tile_ * g.channels + k_;
      active_ = z_ < g.item_lanes && channel_ < g.view.channels;
      outer_ = item_ / g.steps;
      step_ = item_ % g.steps;
    }
  }

  // Whether the thread has any work; the others only wait at barriers.
  TFBN_HD bool Active() const { return active_; }
  TFBN_HD int lane() const { return lane_; }
  TFBN_HD int z() const { return z_; }

  // Items from here on.
  TFBN_HD int64_t Left() const {
    return item_ < end_ ? (end_ - item_ + g_.item_lanes - 1) / g_.item_lanes
                        : 0;
  }

  TFBN_HD void Next() {
    item_ += g_.item_lanes;
    if (!kRows) {
      // Without a division: item_lanes > 1 and steps > 1 seldom meet.
      step_ += g_.item_lanes;
      while (step_ >= g_.steps) {
        step_ -= g_.steps;
        ++outer_;
      }
    }
  }

  TFBN_HD Piece Current() const {
    if (kRows) {
      const int64_t at =
          (item_ * g_.row_vectors + column_vector_) * kVector - g_.shift;
      return Piece{at, at < 0 ? g_.shift : 0, Clamp(g_.elements - at)};
    }
    const int64_t inner = g_.view.inner;
    const int64_t run = (outer_ * g_.view.channels + channel_) * inner;
    const int64_t vector =
        static_cast<int64_t>(static_cast<uint64_t>(run + g_.shift) / kVector) +
        step_ * g_.lanes + lane_;
    const int64_t at = vector * kVector - g_.shift;
    return Piece{at, at < run ? static_cast<int>(run - at) : 0,
                 Clamp(run + inner - at)};
  }

  // Rows: column (element of a row) of this thread's element `e`; with a shift
  // the vector may begin in the row before.
  TFBN_HD int64_t Column(int e) const {
    const int64_t column = column_vector_ * kVector - g_.shift + e;
    return column < 0 ? column + g_.row_vectors * kVector : column;
  }

  // Channel of this thread's first element (runs: of all its elements).
  TFBN_HD int64_t Channel() const {
    return kRows ? Column(0) % g_.view.channels : channel_;
  }

  // Rows: the channel of the element after one of channel `c`.
  TFBN_HD int64_t After(int64_t c) const {
    return c + 1 == g_.view.channels ? 0 : c + 1;
  }

 private:
  static TFBN_HD int Clamp(int64_t n) {
    return n < 0 ? 0 : n > kVector ? kVector : static_cast<int>(n);
  }

  const Geometry& g_;
  int64_t tile_;
  int lane_, k_, z_;
  bool active_ = false;
  int64_t item_ = 0, end_ = 0;
  int64_t column_vector_ = 0;                   // rows
  int64_t channel_ = 0, outer_ = 0, step_ = 0;  // runs
};

// Halves a row of `n` sums `stride` apart, the first of which belongs to thread
// t - index * stride, until one is left; a tree of fixed shape for any n.
template <int kSums, typename Block, typename Index>
TFBN_HD void AddUp(Block& block, double (*sums)[kThreads], int n, int stride,
                   int threads, const Index& index_of) {
  while (n > 1) {
    const int half = (n + 1) / 2;
    block.ForEach([&](int t) {
      if (t >= threads) return;
      const int index = index_of(t);
      if (index >= n - half) return;
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) sums[s][t] += sums[s][t + half * stride];
    });
    n = half;
  }
}

// -----------------------------------------------------------------------------
// Reduce: partial sums of the block's items.

template <typename T, bool kRows>
struct ReduceShared {
  // Sums that a thread ends with: per column, or one for its channel.
  static constexpr int kSums = kRows ? ElementOf<T>::kVector : 1;
  double sums[2 * kSums][kThreads];
  typename ElementOf<T>::Compute factor[kThreads];
};

// kWrite (frozen statistics): x_backprop needs no sums and is written on the
// way. Its vectors are aligned as the inputs' are.
template <typename T, bool kRows, bool kAligned, bool kWrite, typename Block>
TFBN_HD void Reduce(const Params& params, Block& block,
                    ReduceShared<T, kRows>& shared) {
  using C = typename ElementOf<T>::Compute;
  constexpr int kVector = ElementOf<T>::kVector;
  constexpr int kUnroll = ElementOf<T>::kUnroll;
  constexpr int kSums = ReduceShared<T, kRows>::kSums;
  const BatchNormGradArgs& args = params.args;
  const Geometry& g = params.geometry;
  const T* const dy = static_cast<const T*>(args.y_backprop);
  const T* const x = static_cast<const T*>(args.x);
  T* const out = static_cast<T*>(args.x_backprop);

  if (kWrite) {
    // One square root per channel of the tile, not one per thread and column.
    block.ForEach([&](int t) {
      const int64_t tile = g.TileOf(block.Index());
      const int64_t width =
          kRows ? static_cast<int64_t>(g.lanes) * kVector : g.channels;
      const int64_t column = tile * width + t;
      if (t < width && column < g.Columns()) {
        shared.factor[t] = ScaleRstdOf<C>(args, column % g.view.channels);
      }
    });
  }

  block.ForEach([&](int t) {
    Walk<T, kRows> walk(g, block.Index(), t);
    double dy_sum[kSums] = {}, xmu_sum[kSums] = {}, mean[kSums] = {};
    C factor[kSums] = {};
    if (walk.Active()) {
      int64_t c = walk.Channel();
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s, c = walk.After(c)) {
        mean[s] = LoadStat(args.stat_dtype, args.mean, c);
        if (kWrite) {
          factor[s] = shared.factor[kRows ? walk.lane() * kVector + s
                                          : t / g.lanes % g.channels];
        }
      }
      const auto add = [&](const Piece& p, const Vector<T>& dy_vector,
                           const Vector<T>& x_vector) {
        double dy_term[kVector], xmu_term[kVector];
        Vector<T> result;
        TFBN_UNROLL
        for (int e = 0; e < kVector; ++e) {
          const bool own = e >= p.lo && e < p.hi;
          const C d = ToCompute(dy_vector.element[e]);
          const double wide = d;
          const double product =
              wide * (ToCompute(x_vector.element[e]) - mean[kRows ? e : 0]);
          dy_term[e] = own ? wide : 0.0;
          xmu_term[e] = own ? product : 0.0;
          if (kWrite) {
            FromCompute(factor[kRows ? e : 0] * d, &result.element[e]);
          }
        }
        if (kWrite) StoreVector(result, out, p.at, p.lo, p.hi);
        if (kRows) {
          TFBN_UNROLL
          for (int e = 0; e < kVector; ++e) {
            dy_sum[kRows ? e : 0] += dy_term[e];
            xmu_sum[kRows ? e : 0] += xmu_term[e];
          }
        } else {
          // Within the vector first: a short chain per step.
          TFBN_UNROLL
          for (int n = kVector / 2; n > 0; n /= 2) {
            TFBN_UNROLL
            for (int e = 0; e < n; ++e) {
              dy_term[e] += dy_term[e + n];
              xmu_term[e] += xmu_term[e + n];
            }
          }
          dy_sum[0] += dy_term[0];
          xmu_sum[0] += xmu_term[0];
        }
      };
      int64_t left = walk.Left();
      for (; left >= kUnroll; left -= kUnroll) {
        Piece piece[kUnroll];
        Vector<T> dy_vector[kUnroll], x_vector[kUnroll];
        TFBN_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          piece[u] = walk.Current();
          walk.Next();
          // Past its run a thread loads nothing.
          const int64_t at = piece[u].hi > 0 ? piece[u].at : g.elements;
          dy_vector[u] = LoadVector<kAligned, kWrite>(dy, at, g.elements);
          x_vector[u] = LoadVector<kAligned, kWrite>(x, at, g.elements);
        }
        TFBN_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          add(piece[u], dy_vector[u], x_vector[u]);
        }
      }
      for (; left > 0; --left) {
        const Piece piece = walk.Current();
        walk.Next();
        if (piece.hi <= 0) continue;
        add(piece, LoadVector<kAligned, kWrite>(dy, piece.at, g.elements),
            LoadVector<kAligned, kWrite>(x, piece.at, g.elements));
      }
    }
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) {
      shared.sums[s][t] = dy_sum[s];
      shared.sums[kSums + s][t] = xmu_sum[s];
    }
  });

  const int group = g.lanes * g.channels;
  AddUp<2 * kSums>(block, shared.sums, g.item_lanes, group,
                   group * g.item_lanes, [=](int t) { return t / group; });
  if (!kRows) {
    const int lanes = g.lanes;
    AddUp<2 * kSums>(block, shared.sums, lanes, 1, group,
                     [=](int t) { return t % lanes; });
  }

  block.ForEach([&](int t) {
    const Walk<T, kRows> walk(g, block.Index(), t);
    if (!walk.Active() || walk.z() != 0 || (!kRows && walk.lane() != 0)) return;
    const int64_t range = g.RangeOf(block.Index());
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const int64_t at =
          range * g.Columns() + (kRows ? walk.Column(s) : walk.Channel());
      params.partials[at] = shared.sums[s][t];
      params.partials[g.blocks * g.Columns() + at] = shared.sums[kSums + s][t];
    }
  });
}

// -----------------------------------------------------------------------------
// Finish: total sums, the two small outputs, the coefficients.

// Channels of a block: 64 bytes of neighbouring partial sums; fewer where there
// are fewer, so that more threads share the adding.
constexpr int kMaxFinishChannels = 8;

TFBN_HD int FinishChannels(int64_t channels) {
  int n = 1;
  while (n < kMaxFinishChannels && n < channels) n *= 2;
  return n;
}

struct FinishShared {
  double sums[2][kThreads];
};

template <typename C, typename Block>
TFBN_HD void Finish(const Params& params, Block& block, FinishShared& shared) {
  const BatchNormGradArgs& args = params.args;
  const Geometry& g = params.geometry;
  const int64_t channels = args.view.channels;
  const int width = FinishChannels(channels);
  const int lanes = kThreads / width;
  const int64_t first = params.first_channel + block.Index() * width;
  // A channel's partial sums lie `channels` apart: `fold` of them in a range of
  // items. An empty view has none.
  const int64_t terms = g.elements == 0 ? 0 : g.blocks * g.fold;

  block.ForEach([&](int t) {
    const int64_t c = first + t % width;
    double dy_sum = 0, xmu_sum = 0;
    if (c < params.end_channel) {
      TFBN_UNROLL_4  // Loads in flight, not a shorter chain.
          for (int64_t j = t / width; j < terms; j += lanes) {
        dy_sum += params.partials[j * channels + c];
        xmu_sum += params.partials[(terms + j) * channels + c];
      }
    }
    shared.sums[0][t] = dy_sum;
    shared.sums[1][t] = xmu_sum;
  });

  AddUp<2>(block, shared.sums, lanes, width, kThreads,
           [=](int t) { return t / width; });

  block.ForEach([&](int t) {
    const int64_t c = first + t;
    if (t >= width || c >= params.end_channel) return;
    const double sums[Formula::kNumSums] = {shared.sums[0][t],
                                            shared.sums[1][t]};
    if (terms == 0) return Formula::StoreEmpty(args, c);
    const double center = CenterAt(Formula::CentersOf(args), c);
    Formula::StoreSums(args, c, center, sums);
    C k[kNumCoefficients] = {};
    Formula::Finish(args, c, center, sums, k);
    C* const out = static_cast<C*>(params.coefficients) + c;
    TFBN_UNROLL
    for (int i = 0; i < kNumCoefficients; ++i) out[i * channels] = k[i];
  });
}

// -----------------------------------------------------------------------------
// Apply: x_backprop. The grid runs backwards, so that the first blocks read
// what the reduction read last and L2 still holds.

template <typename T, bool kRows, bool kAligned, typename Block>
TFBN_HD void Apply(const Params& params, Block& block) {
  using C = typename ElementOf<T>::Compute;
  constexpr int kVector = ElementOf<T>::kVector;
  constexpr int kUnroll = ElementOf<T>::kUnroll;
  constexpr int kSets = kRows ? kVector : 1;
  const BatchNormGradArgs& args = params.args;
  const Geometry& g = params.geometry;
  const T* const dy = static_cast<const T*>(args.y_backprop);
  const T* const x = static_cast<const T*>(args.x);
  T* const out = static_cast<T*>(args.x_backprop);
  const bool training = args.is_training;

  block.ForEach([&](int t) {
    Walk<T, kRows> walk(g, g.Grid() - 1 - block.Index(), t);
    if (!walk.Active()) return;
    C k[kSets][kNumCoefficients];
    int64_t c = walk.Channel();
    TFBN_UNROLL
    for (int s = 0; s < kSets; ++s, c = walk.After(c)) {
      const C* const from = static_cast<const C*>(params.coefficients) + c;
      TFBN_UNROLL
      for (int i = 0; i < kNumCoefficients; ++i) {
        k[s][i] = from[i * g.view.channels];
      }
    }
    const auto store = [&](const Piece& p, const Vector<T>& dy_vector,
                           const Vector<T>& x_vector) {
      Vector<T> result;
      TFBN_UNROLL
      for (int e = 0; e < kVector; ++e) {
        const int s = kRows ? e : 0;
        const C in[Formula::kInputs] = {ToCompute(dy_vector.element[e]),
                                        ToCompute(x_vector.element[e])};
        C out[Formula::kOutputs];
        if (training) {
          Formula::Element<true>(in, k[s], out);
        } else {
          Formula::Element<false>(in, k[s], out);
        }
        FromCompute(out[0], &result.element[e]);
      }
      StoreVector(result, out, p.at, p.lo, p.hi);
    };
    int64_t left = walk.Left();
    for (; left >= kUnroll; left -= kUnroll) {
      Piece piece[kUnroll];
      Vector<T> dy_vector[kUnroll], x_vector[kUnroll];
      TFBN_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        piece[u] = walk.Current();
        walk.Next();
        const int64_t at = piece[u].hi > 0 ? piece[u].at : g.elements;
        dy_vector[u] = LoadVector<kAligned, true>(dy, at, g.elements);
        if (training) {
          x_vector[u] = LoadVector<kAligned, true>(x, at, g.elements);
        }
      }
      TFBN_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        store(piece[u], dy_vector[u], x_vector[u]);
      }
    }
    for (; left > 0; --left) {
      const Piece piece = walk.Current();
      walk.Next();
      if (piece.hi <= 0) continue;
      Vector<T> x_vector{};
      if (training) {
        x_vector = LoadVector<kAligned, true>(x, piece.at, g.elements);
      }
      store(piece, LoadVector<kAligned, true>(dy, piece.at, g.elements),
            x_vector);
    }
  });
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_PROGRAMS_H_
