// The pass kernel: reads the tensors once, and computes partial sums, outputs
// of view shape, or both.
//
//   reduce in training         kNumSums, no stores
//   apply in training          no sums, with the coefficients of the finish
//                              kernel
//   fixed statistics           kNumFrozenSums and stores, whose coefficients
//                              follow from the arguments alone
//
// A thread loads a batch of items before it uses the first. Sums are two-level
// sums (cc/core/two_level_sum.h): the terms of a column in a batch, or of a
// channel in some vectors of it, are a chain in the compute type; chains are
// added up in double, in shared memory. Where a chain is not finite its
// elements, which are still in registers, are added up in double instead.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_PASS_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_PASS_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device_block.h"
#include "cc/cuda/device_items.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Vectors that a thread loads before it uses the first, at least: as many as
// hide the latency of DRAM (docs/gpu.md).
constexpr int kMinVectorsAhead = 4;
// Maximum 32-bit registers for what a thread holds of its columns; beside sums.
constexpr int kMaxHeld = 24;
constexpr int kMaxHeldBesideSums = 8;

// Items of a batch. Of two tensors four, since long chains have fewer additions
// in double, but not beside stores, where registers spill.
constexpr int BatchItems(int tensors, bool sums_and_stores) {
  int items = tensors == 2 && !sums_and_stores ? 4 : 1;
  while (items * tensors < kMinVectorsAhead) items *= 2;
  return items;
}
static_assert(BatchItems(1, true) <= kTwoLevelChain, "a chain spans a batch");

// What a pass does (its results in training, or with fixed statistics, are an
// argument), its constants, and the shared memory of a block.
template <typename F, typename T, bool kIsChannelsLast, int kNumSums,
          bool kHasStores>
struct PassOf {
  using Formula = F;
  using Element = T;
  using C = Compute<T>;
  static constexpr bool kChannelsLast = kIsChannelsLast;
  static constexpr int kSums = kNumSums;
  static constexpr bool kStores = kHasStores;
  static constexpr int kVector = kVectorOf<T>;
  // A thread sums every column of its slice, or its channel.
  static constexpr int kSlices = kChannelsLast && kSums > 0
                                     ? SlicesOf(kVector, kSums)
                                     : 1;
  static constexpr int kColumns = kChannelsLast ? kVector / kSlices : 1;
  static constexpr int kElements = kVector / kSlices;  // Of a vector.
  static_assert(kSlices <= 4, "slices are whole words");
  static_assert(kSlices == 1 || !kStores, "a slice stores no vector");

  // Tensors that are read, and items of a batch and of a chain.
  static constexpr int kCount =
      kStores ? int{Formula::kInputs} : int{Formula::kNumReduceInputs};
  static constexpr int kBatch = BatchItems(kCount, kSums > 0 && kStores);
  static constexpr int kChain = kChannelsLast ? kBatch
                                : kVector < kTwoLevelChain
                                    ? kTwoLevelChain / kVector < kBatch
                                          ? kTwoLevelChain / kVector
                                          : kBatch
                                    : 1;
  static constexpr bool kMayOverflow =
      std::is_same_v<C, float> && kChainMayOverflow<T>;

  // What is known of a column before its sums: coefficients from kFirst on (of
  // the mask, with fixed statistics all that are used), and the center.
  static constexpr int kFirst = kSums == 0 ? 0
                                : kStores
                                    ? int{Formula::kFirstFrozenCoefficient}
                                    : int{Formula::kFirstMaskCoefficient};
  static constexpr int kCoefficients = Formula::kNumCoefficients - kFirst;
  static constexpr int kKnown = kCoefficients + (kSums > 0 ? 1 : 0);
  // Whether a thread keeps that in registers.
  static constexpr bool kHolds = kColumns * kKnown * int{sizeof(C) / 4} <=
                                 (kSums == 0 ? kMaxHeld : kMaxHeldBesideSums);

  struct Shared {
    double sums[kSums > 0 ? kSums* kColumns : 1][kThreads];
    C known[kKnown][kTileElements];  // The center last.
  };
};

// Puts what is known of the columns of the tile into shared memory, once per
// column: the coefficients' square root and division in double are too slow to
// repeat in every thread.
template <typename P, typename Block>
TFBN_HD void LoadKnown(const KernelParams& params, int64_t block_index,
                       Block& block, typename P::Shared* shared) {
  using Formula = typename P::Formula;
  using C = typename P::C;
  auto args = params.args;
  if (P::kSums > 0 && P::kStores) args.is_training = false;  // A constant.
  block.ForEachThread([&](int t) {
    ForColumnOfTile<typename P::Element, P::kChannelsLast>(
        params.config, block_index, t, [&](int64_t c, int at) {
          C k[Formula::kNumCoefficients];
          if constexpr (P::kSums == 0) {
            const C* const from = static_cast<const C*>(params.coefficients);
            TFBN_UNROLL
            for (int i = 0; i < Formula::kNumCoefficients; ++i) {
              if (args.is_training || i >= Formula::kFirstFrozenCoefficient) {
                k[i] = from[i * args.view.channels + c];
              }
            }
          } else {
            const double center = CenterAt(Formula::CentersOf(args), c);
            shared->known[P::kCoefficients][at] =
                static_cast<C>(ChainCenter(args.dtype, center));
            if constexpr (P::kStores) {
              const double no_sums[Formula::kNumSums] = {};
              Formula::Finish(args, c, center, no_sums, k);
            }
            if constexpr (kHasMask<Formula>) Formula::FinishMask(args, c, k);
          }
          TFBN_UNROLL
          for (int i = 0; i < P::kCoefficients; ++i) {
            shared->known[i][at] = k[P::kFirst + i];
          }
        });
  });
}

// What is known of the columns of a thread. Few numbers are kept in registers;
// many are read from shared memory for every element, or the registers that
// loads need would be occupied.
template <typename P>
class KnownOfThread {
 public:
  using C = typename P::C;

  // `first`: the element of the vector that the thread's slice begins with.
  TFBN_HD KnownOfThread(const typename P::Shared& shared, int x, int y,
                        int first)
      : shared_(shared.known),
        at_(IndexInTile<typename P::Element, P::kChannelsLast>(x, y, first)) {
    if constexpr (P::kHolds) {
      TFBN_UNROLL
      for (int e = 0; e < P::kColumns; ++e) {
        TFBN_UNROLL
        for (int i = 0; i < P::kKnown; ++i) held_[e][i] = shared_[i][at_ + e];
      }
    }
  }

  // Coefficients from kFirst on of element `e` of the slice; the others stay.
  TFBN_HD void Load(int e, C (&k)[P::Formula::kNumCoefficients]) const {
    TFBN_UNROLL
    for (int i = 0; i < P::kCoefficients; ++i) k[P::kFirst + i] = Get(e, i);
  }
  TFBN_HD C Center(int e) const { return Get(e, P::kCoefficients); }

 private:
  TFBN_HD C Get(int e, int i) const {
    const int column = P::kChannelsLast ? e : 0;
    // Volatile: the compiler would load all of them before the loop.
    return P::kHolds
               ? held_[column][i]
               : *static_cast<const volatile C*>(&shared_[i][at_ + column]);
  }

  const C (*const shared_)[kTileElements];
  const int at_;
  C held_[P::kHolds ? P::kColumns : 1][P::kKnown];
};

// The inputs of one element.
template <typename P>
TFBN_HD void LoadElement(const Words (&in)[P::kCount], int e,
                         typename P::C (&to)[P::Formula::kInputs]) {
  using C = typename P::C;
  TFBN_UNROLL
  for (int i = 0; i < P::Formula::kInputs; ++i) {
    to[i] =
        i < P::kCount
            ? static_cast<C>(ToDouble(ElementOf<typename P::Element>(in[i], e)))
            : C{0};
  }
}

// Adds the terms of the thread's elements of one vector to `sums`, in V.
template <typename P, bool kWhole, typename V>
TFBN_HD void AddTerms(const Words (&in)[P::kCount], int begin, int end,
                      const KnownOfThread<P>& known,
                      V (&sums)[P::kColumns][P::kSums]) {
  using Formula = typename P::Formula;
  TFBN_UNROLL
  for (int e = 0; e < P::kElements; ++e) {
    if (!kWhole && (e < begin || e >= end)) continue;
    typename P::C values[Formula::kInputs];
    LoadElement<P>(in, e, values);
    if constexpr (kHasMask<Formula>) {
      typename P::C k[Formula::kNumCoefficients];
      known.Load(e, k);
      Formula::Mask(values, k);
    }
    V wide[Formula::kInputs];
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i) {
      wide[i] = static_cast<V>(values[i]);
    }
    Formula::Accumulate(wide, static_cast<V>(known.Center(e)),
                        sums[P::kChannelsLast ? e : 0]);
  }
}

// The elements of slice `slice` of kSlices, before the others. Constant indices
// keep the vector in registers.
template <int kSlices>
TFBN_HD Words SliceOf(const Words& v, int slice) {
  constexpr int kWords = 4 / kSlices;
  Words part = v;
  TFBN_UNROLL
  for (int s = 1; s < kSlices; ++s) {
    TFBN_UNROLL
    for (int i = 0; i < kWords; ++i) {
      part.word[i] = s == slice ? v.word[s * kWords + i] : part.word[i];
    }
  }
  return part;
}

// The results of one vector of every input.
template <typename P, bool kTraining>
TFBN_HD void ComputeVector(
    const Words (&in)[P::kCount], const KnownOfThread<P>& known,
    typename P::C (&result)[P::Formula::kOutputs][P::kVector]) {
  using Formula = typename P::Formula;
  TFBN_UNROLL
  for (int e = 0; e < P::kVector; ++e) {
    typename P::C from[Formula::kInputs], to[Formula::kOutputs];
    LoadElement<P>(in, e, from);
    typename P::C k[Formula::kNumCoefficients];
    known.Load(e, k);
    Formula::template Element<kTraining>(from, k, to);
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) result[o][e] = to[o];
  }
}

// The pass of one thread. The sum of chain s of column e of thread t is
// shared.sums[s * kColumns + e][t].
template <typename P>
class ThreadPass {
 public:
  using Formula = typename P::Formula;
  using T = typename P::Element;
  using C = typename P::C;
  using Items = ThreadItems<T, P::kChannelsLast>;
  static constexpr int kColumns = P::kColumns, kSums = P::kSums;
  static constexpr int kCount = P::kCount, kBatch = P::kBatch;

  TFBN_HD ThreadPass(const KernelParams& params, const Items& items, int thread,
                     typename P::Shared* shared)
      : params_(params),
        shared_(*shared),
        thread_(thread),
        slice_(P::kSlices > 1 ? items.y() : 0),
        // A pass without sums may be one of training.
        training_(kSums == 0 && !kIsFrozenOnly<Formula> &&
                  params.args.is_training),
        known_(*shared, items.x(), items.y(), slice_ * kColumns),
        tensors_(Formula::TensorsOf(params.args)) {
    TFBN_UNROLL
    for (int i = 0; i < kSums * kColumns; ++i) shared_.sums[i][thread_] = 0;
  }

  // The next batch of items. kWhole: see LoadItems.
  template <bool kWhole>
  TFBN_HD void Batch(Items* items) {
    VectorSlot slot[kBatch];
    Words in[kBatch][kCount];
    const int count = P::kStores && kSums == 0 && !training_
                          ? int{Formula::kNumFrozenInputs}
                          : kCount;
    LoadItems<kWhole>(tensors_.in, count, params_.config.elements,
                      params_.aligned, params_.in_place, items, slot, in);
    if constexpr (kSums > 0) {
      TFBN_UNROLL
      for (int u = 0; u < kBatch; u += P::kChain) {
        AddChain<kWhole>(&slot[u], &in[u]);
      }
    }
    if constexpr (P::kStores) {
      TFBN_UNROLL
      for (int u = 0; u < kBatch; ++u) {
        if (slot[u].Present()) Store<kWhole>(slot[u], in[u]);
      }
    }
  }

 private:
  template <bool kWhole>
  TFBN_HD void AddChain(const VectorSlot* slot, const Words (*in)[kCount]) {
    C chain[kColumns][kSums] = {};
    AddItems<kWhole>(slot, in, chain);
    if constexpr (P::kMayOverflow) {
      float range = 0;
      TFBN_UNROLL
      for (int i = 0; i < kSums * kColumns; ++i) {
        const float sum = chain[i % kColumns][i / kColumns];
        range += sum < 0 ? -sum : sum;
      }
      if (!(range <= 0x1.fffffep127f)) {
        double wide[kColumns][kSums] = {};
        AddItems<kWhole>(slot, in, wide);
        AddToShared(wide);
        return;
      }
    }
    AddToShared(chain);
  }

  template <bool kWhole, typename V>
  TFBN_HD void AddItems(const VectorSlot* slot, const Words (*in)[kCount],
                        V (&chain)[kColumns][kSums]) {
    TFBN_UNROLL
    for (int u = 0; u < P::kChain; ++u) {
      if (!slot[u].Present()) continue;
      Words slice[kCount];
      TFBN_UNROLL
      for (int i = 0; i < kCount; ++i) {
        slice[i] = SliceOf<P::kSlices>(in[u][i], slice_);
      }
      const int first = slice_ * kColumns;
      AddTerms<P, kWhole>(slice, slot[u].begin - first, slot[u].end - first,
                          known_, chain);
    }
  }

  // Volatile: column by column, as all columns at once do not fit into
  // registers.
  template <typename V>
  TFBN_HD void AddToShared(const V (&chain)[kColumns][kSums]) {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      double total[kSums];
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        total[s] = *static_cast<volatile double*>(
            &shared_.sums[s * kColumns + e][thread_]);
      }
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        *static_cast<volatile double*>(
            &shared_.sums[s * kColumns + e][thread_]) =
            total[s] + static_cast<double>(chain[e][s]);
      }
    }
  }

  template <bool kWhole>
  TFBN_HD void Store(const VectorSlot& slot, const Words (&in)[kCount]) {
    C result[Formula::kOutputs][P::kVector];
    // Around the elements, so that each of them needs no branch.
    if (!kIsFrozenOnly<Formula> && training_) {
      ComputeVector<P, !kIsFrozenOnly<Formula>>(in, known_, result);
    } else {
      ComputeVector<P, false>(in, known_, result);
    }
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) {
      const uintptr_t to = AddressOf<T>(tensors_.out[o], slot);
      const Words words = RoundToWords<T>(result[o]);
      if (kWhole) {
        StoreWords(to, words);
      } else {
        StoreElements<T>(words, to, slot.begin, slot.end);
      }
    }
  }

  const KernelParams& params_;
  typename P::Shared& shared_;
  const int thread_, slice_;
  const bool training_;
  const KnownOfThread<P> known_;
  const Tensors tensors_;
};

// Adds up the sums of the block, and stores one per column or channel and sum.
template <typename P, typename Block>
TFBN_HD void StorePartialSums(const KernelParams& params, Block& block,
                              typename P::Shared* shared) {
  constexpr int kColumns = P::kColumns, kSums = P::kSums;
  const LaunchConfig& config = params.config;
  const int threads_x = config.threads_x;
  const int threads_xy = threads_x * config.threads_y;
  TreeReduce<kSums * kColumns>(block, shared->sums, config.threads_z,
                               threads_xy, threads_xy * config.threads_z,
                               [=](int t) { return t / threads_xy; });
  if (!P::kChannelsLast) {
    TreeReduce<kSums * kColumns>(block, shared->sums, threads_x, 1, threads_xy,
                                 [=](int t) { return t % threads_x; });
  }
  block.ForEachThread([&](int t) {
    const ThreadItems<typename P::Element, P::kChannelsLast> thread(
        config, block.Index(), t);
    if (!thread.Active() || thread.z() != 0 ||
        (!P::kChannelsLast && thread.x() != 0)) {
      return;
    }
    const int64_t split = config.SplitOf(block.Index());
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int slice = P::kSlices > 1 ? thread.y() : 0;
      const int64_t column = thread.Column(slice * kColumns + e);
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        params.partial_sums[(s * config.splits + split) * config.Columns() +
                            column] = shared->sums[s * kColumns + e][t];
      }
    }
  });
}

// Blocks that only store run in reverse order, so that the first ones read what
// the reduction read last and L2 still holds.
template <typename P, typename Block>
TFBN_HD void Pass(const KernelParams& params, Block& block,
                  typename P::Shared* shared) {
  const LaunchConfig& config = params.config;
  const int64_t index =
      P::kSums > 0 ? block.Index() : config.GridSize() - 1 - block.Index();
  LoadKnown<P>(params, index, block, shared);
  block.ForEachThread([&](int t) {
    typename ThreadPass<P>::Items items(config, index, t);
    ThreadPass<P> pass(params, items, t, shared);
    if (!items.Active()) return;
    TFBN_NO_UNROLL
    while (!items.Done()) {
      if (params.aligned && items.AreWhole(P::kBatch)) {
        pass.template Batch<true>(&items);
      } else {
        pass.template Batch<false>(&items);
      }
    }
  });
  if constexpr (P::kSums > 0) StorePartialSums<P>(params, block, shared);
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_PASS_H_
