// The CUDA kernels on the host, thread by thread: the device code and launch
// plan of cc/cuda, compiled as plain C++ behind the C ABI's structs. Tests
// indexing and arithmetic without a GPU, and computes the bits that a GPU must
// reproduce.
//
//   g++ -std=c++17 -O1 -ffp-contract=off -shared -fPIC -I. -o emulator.so
//     -DTFBN_EMULATED_CALL=batch_norm_grad
//     tools/gpu/emulator.cc cc/c_api/args.cc cc/c_api/split_args.cc
//
// A library for each call of TFBN_FOR_EACH_C_CALL, which are compiled when they
// are needed, and one without TFBN_EMULATED_CALL for all that is no such call.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cc/c_api/args.h"
#include "cc/c_api/formula_of.h"
#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/formulas/all_formulas.h"
#include "cc/core/formulas/fitting_formula.h"
#include "cc/cuda/device_finish.h"
#include "cc/cuda/launch_plan.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Runs the threads of a phase in a given order: results must not depend on it.
class EmulatedBlock {
 public:
  EmulatedBlock(int64_t index, const std::vector<int>& thread_order)
      : index_(index), thread_order_(thread_order) {}
  int64_t Index() const { return index_; }
  template <typename F>
  void ForEachThread(const F& f) {
    for (const int t : thread_order_) f(t);
  }
  template <typename F>
  void LastPhase(const F& f) {
    ForEachThread(f);
  }

 private:
  const int64_t index_;
  const std::vector<int>& thread_order_;
};

class EmulatorLauncher {
 public:
  // `seed` 0: threads and blocks in ascending order; otherwise shuffled.
  explicit EmulatorLauncher(uint32_t seed)
      : random_(seed), thread_order_(kThreads) {
    std::iota(thread_order_.begin(), thread_order_.end(), 0);
    Shuffle(thread_order_);
  }

  template <typename T, bool kChannelsLast, int kSums, bool kStores,
            typename Formula>
  int Pass(const KernelParams<Formula>& params) {
    using Shared =
        typename PassTraits<Formula, T, kChannelsLast, kSums, kStores>::Shared;
    const auto shared = std::make_unique<Shared>();
    ForEachBlock(params.config.GridSize(), [&](EmulatedBlock block) {
      Poison(*shared);
      cuda::Pass<Formula, T, kChannelsLast, kSums, kStores>(params, block,
                                                            shared.get());
    });
    return 0;
  }
  template <typename T, typename Formula>
  int Finish(const KernelParams<Formula>& params) {
    const auto shared = std::make_unique<FinishShared<Formula>>();
    ForEachBlock(FinishGridSize(params), [&](EmulatedBlock block) {
      Poison(*shared);
      cuda::Finish<Formula, Compute<T>>(params, block, shared.get());
    });
    return 0;
  }
  int Gather(const GatherStatsArgs& args) {
    ForEachBlock(GatherGridSize(args),
                 [&](EmulatedBlock block) { cuda::Gather(args, block); });
    return 0;
  }

  int launches() const { return launches_; }

 private:
  template <typename F>
  void ForEachBlock(int64_t blocks, const F& f) {
    ++launches_;
    std::vector<int64_t> indices(blocks);
    std::iota(indices.begin(), indices.end(), 0);
    Shuffle(indices);
    for (const int64_t index : indices) f(EmulatedBlock(index, thread_order_));
  }

  // Fills shared memory with NaNs, which spread from reads of what the block
  // has not written.
  template <typename Shared>
  static void Poison(Shared& shared) {
    std::memset(static_cast<void*>(&shared), 0xff, sizeof(shared));
  }

  template <typename Int>
  void Shuffle(std::vector<Int>& values) {
    if (random_ == 0) return;
    for (size_t i = values.size(); i > 1; --i) {
      random_ = random_ * 1664525u + 1013904223u;
      std::swap(values[i - 1], values[(random_ >> 8) % i]);
    }
  }

  int launches_ = 0;
  uint32_t random_;
  std::vector<int> thread_order_;
};

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

namespace cuda = tf_bn_ops::cuda;
using tf_bn_ops::BatchNormGradFormula;
using tf_bn_ops::DType;
using tf_bn_ops::View;

namespace {

// How a call is emulated: the arguments of the exported functions.
struct Emulation {
  void* workspace;
  uint32_t seed;
  int32_t* launches;
};

int CopyTensor(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}

template <typename Formula, typename CArgs>
int Emulate(const CArgs* c_args, const Emulation& emulation, char* error,
            size_t error_size) {
  typename Formula::Args args;
  const std::string message = tf_bn_ops::c_api::ReadArgs(c_args, &args);
  if (!message.empty()) {
    return tf_bn_ops::c_api::Fail(message, error, error_size);
  }
  cuda::EmulatorLauncher launcher(emulation.seed);
  const int failed = tf_bn_ops::RunFittingFormula<Formula>(
      args,
      [&](auto fitting, const auto& its_args) {
        return cuda::LaunchFormula<typename decltype(fitting)::Formula>(
            its_args, emulation.workspace, launcher);
      },
      CopyTensor);
  if (emulation.launches != nullptr) *emulation.launches = launcher.launches();
  return failed;
}

}  // namespace

extern "C" {

#ifdef TFBN_EMULATED_CALL

// As tfbn_cuda_batch_norm, ...: `seed` other than 0 shuffles threads and
// blocks; `launches`, if not null, receives the number of kernels.
#define TFBN_DEFINE_CALL(name)                                                \
  TFBN_EXPORT int tfbn_emulate_##name(                                        \
      const tfbn_##name##_args* args, void* workspace, uint32_t seed,         \
      int32_t* launches, char* error, size_t error_size) {                    \
    const Emulation emulation{workspace, seed, launches};                     \
    return tf_bn_ops::c_api::RunFormulaOf(args, [&](auto formula) {           \
      return Emulate<typename decltype(formula)::Formula>(args, emulation,    \
                                                          error, error_size); \
    });                                                                       \
  }
// Expands its argument first.
#define TFBN_DEFINE_EXPANDED(name) TFBN_DEFINE_CALL(name)
TFBN_DEFINE_EXPANDED(TFBN_EMULATED_CALL)

#else

// As tfbn_cuda_workspace.
TFBN_EXPORT int64_t tfbn_emulate_workspace(int64_t outer, int64_t channels,
                                           int64_t inner, int32_t dtype) {
  const View view{outer, channels, inner};
  size_t bytes = 0;
#define X(unused, F, name)                                    \
  bytes = std::max(bytes, cuda::WorkspaceBytes<tf_bn_ops::F>( \
                              view, static_cast<DType>(dtype)));
  TFBN_FOR_EACH_FORMULA(X, )
#undef X
  return static_cast<int64_t>(bytes);
}

// As tfbn_cuda_batch_norm_gather_stats.
TFBN_EXPORT int tfbn_emulate_batch_norm_gather_stats(
    const tfbn_batch_norm_gather_stats_args* args, uint32_t seed, char* error,
    size_t error_size) {
  tf_bn_ops::GatherStatsArgs gather;
  const std::string message = tf_bn_ops::c_api::ReadArgs(args, &gather);
  if (!message.empty()) {
    return tf_bn_ops::c_api::Fail(message, error, error_size);
  }
  return cuda::EmulatorLauncher(seed).Gather(gather);
}

// The launch configuration of the gradient's reduction: grid size, threads_x,
// threads_y, threads_z, fold, strides, items, splits.
TFBN_EXPORT void tfbn_emulate_launch_config(int64_t outer, int64_t channels,
                                            int64_t inner, int32_t dtype,
                                            int64_t* out) {
  const cuda::LaunchConfig c = cuda::ReduceConfig<BatchNormGradFormula>(
      View{outer, channels, inner}, static_cast<DType>(dtype), true);
  const int64_t values[] = {c.GridSize(), c.threads_x, c.threads_y, c.threads_z,
                            c.fold,       c.strides,   c.items,     c.splits};
  std::copy(std::begin(values), std::end(values), out);
}

#endif  // TFBN_EMULATED_CALL

}  // extern "C"
