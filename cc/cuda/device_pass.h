// The pass kernel: reads the tensors once, and computes partial sums, outputs
// of view shape, or both.
//
//   reduce in training         Pass<Formula, kNumSums, false>
//   apply in training          Pass<Formula, 0, true>, with the coefficients of
//                              the finish kernel
//   fixed statistics           Pass<Formula, kNumFrozenSums, true>, whose
//                              coefficients follow from the arguments alone
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

// The constants of a pass, and the shared memory of a block.
template <typename Formula, typename T, bool kChannelsLast, int kSums,
          bool kStores>
struct PassTraits {
  using C = Compute<T>;
  static constexpr int kVector = VectorTraits<T>::kVector;
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

  struct Shared {
    double sums[kSums > 0 ? kSums* kColumns : 1][kThreads];
    C known[kKnown][kTileElements];  // The center last.
  };
};

// Puts what is known of the columns of the tile into shared memory, once per
// column: the coefficients' square root and division in double are too slow to
// repeat in every thread.
template <typename Formula, typename Traits, bool kChannelsLast, int kSums,
          bool kStores, typename T, typename Block>
TFBN_HD void LoadKnown(const KernelParams<Formula>& params, int64_t block_index,
                       Block& block, typename Traits::Shared* shared) {
  using C = Compute<T>;
  constexpr int kFirst = Traits::kFirst;
  auto args = params.args;
  if (kSums > 0 && kStores) args.is_training = false;  // A constant.
  block.ForEachThread([&](int t) {
    ForColumnOfTile<T, kChannelsLast>(
        params.config, block_index, t, [&](int64_t c, int at) {
          C k[Formula::kNumCoefficients];
          if constexpr (kSums == 0) {
            const C* const from = static_cast<const C*>(params.coefficients);
            TFBN_UNROLL
            for (int i = 0; i < Formula::kNumCoefficients; ++i) {
              if (args.is_training || i >= Formula::kFirstFrozenCoefficient) {
                k[i] = from[i * args.view.channels + c];
              }
            }
          } else {
            const double center = CenterAt(Formula::CentersOf(args), c);
            shared->known[Traits::kCoefficients][at] =
                static_cast<C>(ChainCenter(args.dtype, center));
            if constexpr (kStores) {
              const double no_sums[Formula::kNumSums] = {};
              Formula::Finish(args, c, center, no_sums, k);
            }
            if constexpr (kHasMask<Formula>) Formula::FinishMask(args, c, k);
          }
          TFBN_UNROLL
          for (int i = 0; i < Traits::kCoefficients; ++i) {
            shared->known[i][at] = k[kFirst + i];
          }
        });
  });
}

// What is known of the columns of a thread. Few numbers are kept in registers;
// many are read from shared memory for every element, or the registers that
// loads need would be occupied.
template <typename Formula, typename Traits, bool kChannelsLast, typename T,
          int kMaxRegisters>
class KnownOfThread {
 public:
  using C = Compute<T>;
  static constexpr bool kInRegisters =
      Traits::kColumns * Traits::kKnown * int{sizeof(C) / 4} <= kMaxRegisters;

  // `first`: the element of the vector that the thread's slice begins with.
  TFBN_HD KnownOfThread(const typename Traits::Shared& shared, int x, int y,
                        int first)
      : shared_(shared.known), at_(IndexInTile<T, kChannelsLast>(x, y, first)) {
    if constexpr (kInRegisters) {
      TFBN_UNROLL
      for (int e = 0; e < Traits::kColumns; ++e) {
        TFBN_UNROLL
        for (int i = 0; i < Traits::kKnown; ++i)
          held_[e][i] = shared_[i][at_ + e];
      }
    }
  }

  // Coefficients from kFirst on of element `e` of the slice; the others stay.
  TFBN_HD void Load(int e, C (&k)[Formula::kNumCoefficients]) const {
    TFBN_UNROLL
    for (int i = 0; i < Traits::kCoefficients; ++i) {
      k[Traits::kFirst + i] = Get(e, i);
    }
  }
  TFBN_HD C Center(int e) const { return Get(e, Traits::kCoefficients); }

 private:
  TFBN_HD C Get(int e, int i) const {
    const int column = kChannelsLast ? e : 0;
    // Volatile: the compiler would load all of them before the loop.
    return kInRegisters
               ? held_[column][i]
               : *static_cast<const volatile C*>(&shared_[i][at_ + column]);
  }

  const C (*const shared_)[kTileElements];
  const int at_;
  C held_[kInRegisters ? Traits::kColumns : 1][Traits::kKnown];
};

// The inputs of one element.
template <typename Formula, typename T, int kCount>
TFBN_HD void LoadElement(const Words (&in)[kCount], int e,
                         Compute<T> (&to)[Formula::kInputs]) {
  TFBN_UNROLL
  for (int i = 0; i < Formula::kInputs; ++i) {
    to[i] = i < kCount
                ? static_cast<Compute<T>>(ToDouble(ElementOf<T>(in[i], e)))
                : Compute<T>(0);
  }
}

// Adds the terms of the thread's elements of one vector to `sums`, in V.
template <typename Formula, typename Traits, bool kChannelsLast, bool kWhole,
          typename T, typename V, typename Known, int kCount, int kColumns,
          int kSums>
TFBN_HD void AddTerms(const Words (&in)[kCount], int begin, int end,
                      const Known& known, V (&sums)[kColumns][kSums]) {
  TFBN_UNROLL
  for (int e = 0; e < Traits::kElements; ++e) {
    if (!kWhole && (e < begin || e >= end)) continue;
    Compute<T> values[Formula::kInputs];
    LoadElement<Formula, T>(in, e, values);
    if constexpr (kHasMask<Formula>) {
      Compute<T> k[Formula::kNumCoefficients];
      known.Load(e, k);
      Formula::Mask(values, k);
    }
    V wide[Formula::kInputs];
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i)
      wide[i] = static_cast<V>(values[i]);
    Formula::Accumulate(wide, static_cast<V>(known.Center(e)),
                        sums[kChannelsLast ? e : 0]);
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
template <typename Formula, typename T, bool kTraining, int kCount,
          typename Known>
TFBN_HD void ComputeVector(
    const Words (&in)[kCount], const Known& known,
    Compute<T> (&result)[Formula::kOutputs][VectorTraits<T>::kVector]) {
  TFBN_UNROLL
  for (int e = 0; e < VectorTraits<T>::kVector; ++e) {
    Compute<T> from[Formula::kInputs], to[Formula::kOutputs];
    LoadElement<Formula, T>(in, e, from);
    Compute<T> k[Formula::kNumCoefficients];
    known.Load(e, k);
    Formula::template Element<kTraining>(from, k, to);
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) result[o][e] = to[o];
  }
}

// The pass of one thread. The sum of chain s of column e of thread t is
// shared.sums[s * kColumns + e][t].
template <typename Formula, typename T, bool kChannelsLast, int kSums,
          bool kStores>
class ThreadPass {
 public:
  using Traits = PassTraits<Formula, T, kChannelsLast, kSums, kStores>;
  using Items = ThreadItems<T, kChannelsLast>;
  using Known = KnownOfThread<Formula, Traits, kChannelsLast, T,
                              kSums == 0 ? kMaxHeld : kMaxHeldBesideSums>;
  static constexpr int kColumns = Traits::kColumns;
  static constexpr int kCount = Traits::kCount;
  static constexpr int kBatch = Traits::kBatch;

  TFBN_HD ThreadPass(const KernelParams<Formula>& params, const Items& items,
                     int thread, typename Traits::Shared* shared)
      : params_(params),
        shared_(*shared),
        thread_(thread),
        slice_(Traits::kSlices > 1 ? items.y() : 0),
        // A pass without sums may be one of training.
        training_(kSums == 0 && !kIsFrozenOnly<Formula> &&
                  params.args.is_training),
        known_(*shared, items.x(), items.y(), slice_ * kColumns),
        tensors_(Formula::TensorsOf(params.args)),
        reader_(tensors_.in) {
    TFBN_UNROLL
    for (int i = 0; i < kSums * kColumns; ++i) shared_.sums[i][thread_] = 0;
  }

  // The next batch of items. kWhole: see LoadItems.
  template <bool kWhole>
  TFBN_HD void Batch(Items* items) {
    VectorSlot slot[kBatch];
    Words in[kBatch][kCount];
    const int count = kStores && kSums == 0 && !training_
                          ? int{Formula::kNumFrozenInputs}
                          : kCount;
    LoadItems<kWhole>(reader_, count, params_.config.elements, params_.aligned,
                      params_.in_place, items, slot, in);
    if constexpr (kSums > 0) {
      TFBN_UNROLL
      for (int u = 0; u < kBatch; u += Traits::kChain) {
        AddChain<kWhole>(&slot[u], &in[u]);
      }
    }
    if constexpr (kStores) {
      TFBN_UNROLL
      for (int u = 0; u < kBatch; ++u) {
        if (slot[u].Present()) Store<kWhole>(slot[u], in[u]);
      }
    }
  }

 private:
  template <bool kWhole>
  TFBN_HD void AddChain(const VectorSlot* slot, const Words (*in)[kCount]) {
    Compute<T> chain[kColumns][kSums] = {};
    AddItems<kWhole>(slot, in, chain);
    if constexpr (Traits::kMayOverflow) {
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
    for (int u = 0; u < Traits::kChain; ++u) {
      if (!slot[u].Present()) continue;
      Words slice[kCount];
      TFBN_UNROLL
      for (int i = 0; i < kCount; ++i) {
        slice[i] = SliceOf<Traits::kSlices>(in[u][i], slice_);
      }
      const int first = slice_ * kColumns;
      AddTerms<Formula, Traits, kChannelsLast, kWhole, T>(
          slice, slot[u].begin - first, slot[u].end - first, known_, chain);
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
    Compute<T> result[Formula::kOutputs][VectorTraits<T>::kVector];
    // Around the elements, so that each of them needs no branch.
    if (!kIsFrozenOnly<Formula> && training_) {
      ComputeVector<Formula, T, !kIsFrozenOnly<Formula>>(in, known_, result);
    } else {
      ComputeVector<Formula, T, false>(in, known_, result);
    }
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) {
      const uintptr_t to = reinterpret_cast<uintptr_t>(tensors_.out[o]) +
                           static_cast<uintptr_t>(slot.element) * sizeof(T);
      const Words words = RoundToWords<T>(result[o]);
      if (kWhole) {
        StoreWords(to, words);
      } else {
        StoreElements<T>(words, to, slot.begin, slot.end);
      }
    }
  }

  const KernelParams<Formula>& params_;
  typename Traits::Shared& shared_;
  const int thread_, slice_;
  const bool training_;
  const Known known_;
  const Tensors<Formula::kInputs, Formula::kOutputs> tensors_;
  const VectorReader<T, kCount> reader_;
};

// Adds up the sums of the block, and stores one per column or channel and sum.
template <typename Formula, typename T, bool kChannelsLast, int kSums,
          bool kStores, typename Block, typename Shared>
TFBN_HD void StorePartialSums(const KernelParams<Formula>& params, Block& block,
                              Shared* shared) {
  using Traits = PassTraits<Formula, T, kChannelsLast, kSums, kStores>;
  constexpr int kColumns = Traits::kColumns;
  const LaunchConfig& config = params.config;
  const int threads_x = config.threads_x;
  const int threads_xy = threads_x * config.threads_y;
  TreeReduce<kSums * kColumns>(block, shared->sums, config.threads_z,
                               threads_xy, threads_xy * config.threads_z,
                               [=](int t) { return t / threads_xy; });
  if (!kChannelsLast) {
    TreeReduce<kSums * kColumns>(block, shared->sums, threads_x, 1, threads_xy,
                                 [=](int t) { return t % threads_x; });
  }
  block.LastPhase([&](int t) {
    const ThreadItems<T, kChannelsLast> thread(config, block.Index(), t);
    if (!thread.Active() || thread.z() != 0 ||
        (!kChannelsLast && thread.x() != 0)) {
      return;
    }
    const int64_t split = config.SplitOf(block.Index());
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int slice = Traits::kSlices > 1 ? thread.y() : 0;
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
template <typename Formula, typename T, bool kChannelsLast, int kSums,
          bool kStores, typename Block>
TFBN_HD void Pass(const KernelParams<Formula>& params, Block& block,
                  typename PassTraits<Formula, T, kChannelsLast, kSums,
                                      kStores>::Shared* shared) {
  using Traits = PassTraits<Formula, T, kChannelsLast, kSums, kStores>;
  const LaunchConfig& config = params.config;
  const int64_t index =
      kSums > 0 ? block.Index() : config.GridSize() - 1 - block.Index();
  LoadKnown<Formula, Traits, kChannelsLast, kSums, kStores, T>(params, index,
                                                               block, shared);
  const auto run = [&](int t) {
    ThreadItems<T, kChannelsLast> items(config, index, t);
    ThreadPass<Formula, T, kChannelsLast, kSums, kStores> pass(params, items, t,
                                                               shared);
    if (!items.Active()) return;
    TFBN_NO_UNROLL
    while (!items.Done()) {
      if (params.aligned && items.AreWhole(Traits::kBatch)) {
        pass.template Batch<true>(&items);
      } else {
        pass.template Batch<false>(&items);
      }
    }
  };
  if constexpr (kSums > 0) {
    block.ForEachThread(run);
    StorePartialSums<Formula, T, kChannelsLast, kSums, kStores>(params, block,
                                                                shared);
  } else {
    block.LastPhase(run);
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_PASS_H_
