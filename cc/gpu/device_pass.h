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

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/gpu/device_items.h"
#include "cc/gpu/device_vector.h"
#include "cc/gpu/launch_config.h"

namespace tf_bn_ops::gpu {

// Vectors that a thread loads before it uses the first, at least: as many as
// hide the latency of DRAM (docs/gpu.md).
constexpr int kMinVectorsAhead = 4;

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
  using C = ComputeOf<T>;
  static constexpr bool kChannelsLast = kIsChannelsLast;
  static constexpr int kSums = kNumSums;
  static constexpr bool kStores = kHasStores;
  static constexpr int kVector = kVectorOf<T>;
  // A thread sums every column of its slice, or its channel.
  static constexpr int kSlices = kChannelsLast && kSums > 0
                                     ? SlicesOf(kVector, kSums)
                                     : 1;
  static constexpr int kElements = kVector / kSlices;  // Of a vector.
  static constexpr int kColumns = kChannelsLast ? kElements : 1;
  static_assert(kSlices <= 4, "slices are whole words");
  static_assert(kSlices == 1 || !kStores, "a slice stores no vector");

  // Tensors that are read, and items of a batch and of a chain.
  static constexpr int kCount =
      kStores ? int{F::kInputs} : int{F::kNumReduceInputs};
  static constexpr int kBatch = BatchItems(kCount, kSums > 0 && kStores);
  static constexpr int kChain =
      kChannelsLast ? kBatch : std::min(kBatch, kTwoLevelChain / kVector);
  static constexpr bool kMayOverflow =
      std::is_same_v<C, float> && kChainMayOverflow<T>;

  // What is known of a column before its sums: coefficients from kFirst on (of
  // the mask, with fixed statistics all that are used), and the center.
  static constexpr int kFirst = kSums == 0 ? 0
                                : kStores  ? int{F::kFirstFrozenCoefficient}
                                           : int{F::kFirstMaskCoefficient};
  static constexpr int kCoefficients = F::kNumCoefficients - kFirst;
  static constexpr int kKnown = kCoefficients + (kSums > 0 ? 1 : 0);

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
  using F = typename P::Formula;
  using C = typename P::C;
  auto call = params.call;
  if (P::kSums > 0 && P::kStores) call.is_training = false;  // A constant.
  block.ForEachThread([&](int t) {
    ForColumnOfTile<typename P::Element, P::kChannelsLast>(
        params.config, block_index, t, [&](int64_t c, int at) {
          C k[F::kNumCoefficients];
          if constexpr (P::kSums == 0) {
            const C* const from = static_cast<const C*>(params.coefficients);
            TFBN_UNROLL
            for (int i = 0; i < F::kNumCoefficients; ++i) {
              if (call.is_training || i >= F::kFirstFrozenCoefficient) {
                k[i] = from[i * call.view.channels + c];
              }
            }
          } else {
            const double center = CenterAt(F::CentersOf(call), c);
            shared->known[P::kCoefficients][at] =
                static_cast<C>(ChainCenter(call.dtype, center));
            if constexpr (P::kStores) {
              const double no_sums[F::kNumSums] = {};
              F::Finish(call, c, center, no_sums, k);
            }
            if constexpr (kHasMask<F>) F::FinishMask(call, c, k);
          }
          TFBN_UNROLL
          for (int i = 0; i < P::kCoefficients; ++i) {
            shared->known[i][at] = k[P::kFirst + i];
          }
        });
  });
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

// The pass of one thread. The sum of chain s of column e of thread t is
// shared.sums[s * kColumns + e][t].
template <typename P>
class ThreadPass {
 public:
  using F = typename P::Formula;
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
        slice_(P::kSlices > 1 ? items.y : 0),
        in_tile_(IndexInTile<T, P::kChannelsLast>(items.x, items.y,
                                                  slice_ * kColumns)),
        // A pass without sums may be one of training.
        training_(kSums == 0 && !kHasOneElement<F> && params.call.is_training),
        tensors_(F::TensorsOf(params.call)) {
    TFBN_UNROLL
    for (int i = 0; i < kSums * kColumns; ++i) shared_.sums[i][thread_] = 0;
  }

  // The next batch of items. kWhole: their vectors are whole, or absent, and
  // aligned.
  template <bool kWhole>
  TFBN_HD void Batch(Items* items) {
    VectorSlot slot[kBatch];
    Words in[kBatch][kCount];
    Load<kWhole>(items, slot, in);
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
  // Loads the vectors of a batch, all of them before the first is used. Unless
  // kWhole, those that reach beyond the tensors, are misaligned, or, in place,
  // would read elements that another thread writes, are loaded element by
  // element.
  template <bool kWhole>
  TFBN_HD void Load(Items* items, VectorSlot (&slot)[kBatch],
                    Words (&in)[kBatch][kCount]) {
    const int count = P::kStores && kSums == 0 && !training_
                          ? int{F::kNumFrozenInputs}
                          : kCount;
    bool by_element[kBatch];
    TFBN_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      slot[u] = items->template Next<kWhole>();
      const bool partial = slot[u].begin > 0 || slot[u].end < P::kVector;
      by_element[u] =
          !kWhole && (!params_.aligned || (partial && params_.in_place) ||
                      slot[u].element + P::kVector > params_.config.elements);
      const bool wanted = slot[u].Present() && !by_element[u];
      TFBN_UNROLL
      for (int i = 0; i < kCount; ++i) {
        in[u][i] = LoadWords(AddressOf<T>(tensors_.in[i], slot[u]),
                             wanted && i < count);
      }
    }
    TFBN_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      if (!by_element[u]) continue;
      TFBN_UNROLL
      for (int i = 0; i < kCount; ++i) {
        if (i < count) in[u][i] = LoadElements<T>(tensors_.in[i], slot[u]);
      }
    }
  }

  template <bool kWhole>
  TFBN_HD void AddChain(const VectorSlot* slot, const Words (*in)[kCount]) {
    C chain[kColumns][kSums] = {};
    AddTerms<kWhole>(slot, in, chain);
    if constexpr (P::kMayOverflow) {
      float range = 0;
      TFBN_UNROLL
      for (int i = 0; i < kSums * kColumns; ++i) {
        const float sum = chain[i % kColumns][i / kColumns];
        range += sum < 0 ? -sum : sum;
      }
      if (!(range <= 0x1.fffffep127f)) {
        double wide[kColumns][kSums] = {};
        AddTerms<kWhole>(slot, in, wide);
        AddToShared(wide);
        return;
      }
    }
    AddToShared(chain);
  }

  // Number `i` of what is known of element `e` of the slice. Of many columns
  // volatile: the compiler would load all of them before the loop, and occupy
  // the registers that the batch needs.
  TFBN_HD C Known(int e, int i) const {
    const C* const of =
        &shared_.known[i][in_tile_ + (P::kChannelsLast ? e : 0)];
    return P::kChannelsLast ? *static_cast<const volatile C*>(of) : *of;
  }
  // Its coefficients from kFirst on; the others stay.
  TFBN_HD void LoadCoefficients(int e, C (&k)[F::kNumCoefficients]) const {
    TFBN_UNROLL
    for (int i = 0; i < P::kCoefficients; ++i) k[P::kFirst + i] = Known(e, i);
  }

  // The inputs of one element.
  static TFBN_HD void LoadElement(const Words (&in)[kCount], int e,
                                  C (&to)[F::kInputs]) {
    TFBN_UNROLL
    for (int i = 0; i < F::kInputs; ++i) {
      to[i] =
          i < kCount ? static_cast<C>(ToDouble(ElementOf<T>(in[i], e))) : C{0};
    }
  }

  // Adds the terms of the thread's elements of a chain, in V.
  template <bool kWhole, typename V>
  TFBN_HD void AddTerms(const VectorSlot* slot, const Words (*in)[kCount],
                        V (&chain)[kColumns][kSums]) {
    const int first = slice_ * kColumns;
    TFBN_UNROLL
    for (int u = 0; u < P::kChain; ++u) {
      if (!slot[u].Present()) continue;
      Words slice[kCount];
      TFBN_UNROLL
      for (int i = 0; i < kCount; ++i) {
        slice[i] = SliceOf<P::kSlices>(in[u][i], slice_);
      }
      TFBN_UNROLL
      for (int e = 0; e < P::kElements; ++e) {
        if (!kWhole && !slot[u].Has(first + e)) continue;
        C values[F::kInputs];
        LoadElement(slice, e, values);
        if constexpr (kHasMask<F>) {
          C k[F::kNumCoefficients];
          LoadCoefficients(e, k);
          F::Mask(values, k);
        }
        V wide[F::kInputs];
        TFBN_UNROLL
        for (int i = 0; i < F::kInputs; ++i) {
          wide[i] = static_cast<V>(values[i]);
        }
        F::Accumulate(wide, static_cast<V>(Known(e, P::kCoefficients)),
                      chain[P::kChannelsLast ? e : 0]);
      }
    }
  }

  // Volatile: column by column, as all columns at once do not fit into
  // registers.
  template <typename V>
  TFBN_HD void AddToShared(const V (&chain)[kColumns][kSums]) {
    const auto sum = [&](int s, int e) -> volatile double& {
      return shared_.sums[s * kColumns + e][thread_];
    };
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      double total[kSums];
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) total[s] = sum(s, e);
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        sum(s, e) = total[s] + static_cast<double>(chain[e][s]);
      }
    }
  }

  // Computes and stores the results of one vector of every input.
  template <bool kWhole>
  TFBN_HD void Store(const VectorSlot& slot, const Words (&in)[kCount]) {
    C result[F::kOutputs][P::kVector];
    // Around the elements, so that each of them needs no branch.
    if (!kHasOneElement<F> && training_) {
      ComputeResults<!kHasOneElement<F>>(in, result);
    } else {
      ComputeResults<false>(in, result);
    }
    TFBN_UNROLL
    for (int o = 0; o < F::kOutputs; ++o) {
      const Words words = RoundToWords<T>(result[o]);
      if (kWhole) {
        StoreWords(AddressOf<T>(tensors_.out[o], slot), words);
      } else {
        StoreElements<T>(words, tensors_.out[o], slot);
      }
    }
  }

  template <bool kTraining>
  TFBN_HD void ComputeResults(const Words (&in)[kCount],
                              C (&result)[F::kOutputs][P::kVector]) {
    TFBN_UNROLL
    for (int e = 0; e < P::kVector; ++e) {
      C from[F::kInputs], k[F::kNumCoefficients], to[F::kOutputs];
      LoadElement(in, e, from);
      LoadCoefficients(e, k);
      F::template Element<kTraining>(from, k, to);
      TFBN_UNROLL
      for (int o = 0; o < F::kOutputs; ++o) result[o][e] = to[o];
    }
  }

  const KernelParams& params_;
  typename P::Shared& shared_;
  const int thread_, slice_, in_tile_;
  const bool training_;
  const Tensors tensors_;
};

// Adds up the sums of the block, and stores one per column or channel and sum.
template <typename P, typename Block>
TFBN_HD void StorePartialSums(const KernelParams& params, Block& block,
                              typename P::Shared* shared) {
  constexpr int kColumns = P::kColumns, kSums = P::kSums;
  const LaunchConfig& config = params.config;
  const int threads_xy = config.threads_x * config.threads_y;
  TreeReduce<kSums * kColumns>(block, shared->sums, config.threads_z,
                               threads_xy, threads_xy * config.threads_z);
  if (!P::kChannelsLast) {
    TreeReduce<kSums * kColumns>(block, shared->sums, config.threads_x, 1,
                                 threads_xy);
  }
  block.ForEachThread([&](int t) {
    const ThreadItems<typename P::Element, P::kChannelsLast> thread(
        config, block.Index(), t);
    const bool first = thread.z == 0 && (P::kChannelsLast || thread.x == 0);
    if (!thread.active || !first) return;
    const int64_t split = config.SplitOf(block.Index());
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int slice = P::kSlices > 1 ? thread.y : 0;
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
    if (!items.active) return;
    TFBN_NO_UNROLL
    while (items.left > 0) {
      if (params.aligned && items.AreWhole(P::kBatch)) {
        pass.template Batch<true>(&items);
      } else {
        pass.template Batch<false>(&items);
      }
    }
  });
  if constexpr (P::kSums > 0) StorePartialSums<P>(params, block, shared);
}

}  // namespace tf_bn_ops::gpu
