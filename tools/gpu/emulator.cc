// The CUDA kernels on the host, thread by thread: the device code and launch
// plan of cc/gpu, compiled as plain C++ behind the C ABI's structs. Tests
// indexing and arithmetic without a GPU, and computes the bits that a GPU must
// reproduce.
//
//   g++ -std=c++17 -O1 -ffp-contract=off -shared -fPIC -I. -o emulator.so
//     -DTFBN_EMULATED_FORMULA=BatchNormGradFormula
//     tools/gpu/emulator.cc cc/c_api/read_call.cc
//
// A library for each formula, which are compiled when they are needed, and one
// without TFBN_EMULATED_FORMULA for all that is no call of a formula.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cc/c_api/read_call.h"
#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/formulas/all_formulas.h"
#include "cc/gpu/device_finish.h"
#include "cc/gpu/launch_plan.h"

namespace tf_bn_ops::gpu {
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

  template <typename P>
  int Pass(const KernelParams& params) {
    const auto shared = std::make_unique<typename P::Shared>();
    ForEachBlock(params.config.GridSize(), [&](EmulatedBlock block) {
      Poison(*shared);
      gpu::Pass<P>(params, block, shared.get());
    });
    return 0;
  }
  template <typename Formula, typename T>
  int Finish(const KernelParams& params) {
    const auto shared = std::make_unique<FinishShared<Formula>>();
    ForEachBlock(FinishGridSize(params), [&](EmulatedBlock block) {
      Poison(*shared);
      gpu::Finish<Formula, ComputeOf<T>>(params, block, shared.get());
    });
    return 0;
  }
  int Gather(const GatherStatsArgs& args) {
    ForEachBlock(GatherGridSize(args),
                 [&](EmulatedBlock block) { gpu::Gather(args, block); });
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
}  // namespace tf_bn_ops::gpu

namespace gpu = tf_bn_ops::gpu;
using tf_bn_ops::DType;
using tf_bn_ops::View;

extern "C" {

#ifdef TFBN_EMULATED_FORMULA

// As tfbn_gpu_run, of calls of this formula: `seed` other than 0 shuffles
// threads and blocks; `launches`, if not null, receives the number of kernels.
TFBN_EXPORT int tfbn_emulate_run(const tfbn_call* call, void* workspace,
                                 uint32_t seed, int32_t* launches, char* error,
                                 size_t error_size) {
  if (tf_bn_ops::c_api::Report(error, error_size, [&] {
        return tf_bn_ops::c_api::CheckCall(call);
      }) != 0) {
    return 1;
  }
  gpu::EmulatorLauncher launcher(seed);
  const int failed = tf_bn_ops::RunWithCopies(
      tf_bn_ops::Call(*call),
      [&](const tf_bn_ops::Call& computed) {
        return gpu::LaunchFormula<tf_bn_ops::TFBN_EMULATED_FORMULA>(
            computed, workspace, launcher);
      },
      [](void* to, const void* from, size_t bytes) {
        std::memcpy(to, from, bytes);
        return 0;
      });
  if (launches != nullptr) *launches = launcher.launches();
  return failed;
}

#else

// The formula that computes a call, for TFBN_EMULATED_FORMULA.
TFBN_EXPORT const char* tfbn_emulate_formula(const tfbn_call* call) {
  switch (tf_bn_ops::FormulaOf(tf_bn_ops::Call(*call))) {
#define X(unused, F, name)            \
  case tf_bn_ops::FormulaIndex::k##F: \
    return #F;
    TFBN_FOR_EACH_FORMULA(X, )
#undef X
  }
  return nullptr;
}

// As tfbn_gpu_workspace.
TFBN_EXPORT int64_t tfbn_emulate_workspace(const tfbn_call* call) {
  size_t bytes = 0;
#define X(unused, F, name)                  \
  if (tf_bn_ops::F::kKind == call->formula) \
    bytes = std::max(                       \
        bytes, gpu::WorkspaceBytes<tf_bn_ops::F>(call->view, call->dtype));
  TFBN_FOR_EACH_FORMULA(X, )
#undef X
  return static_cast<int64_t>(bytes);
}

// As tfbn_gpu_gather_stats.
TFBN_EXPORT int tfbn_emulate_gather_stats(const tfbn_gather_stats* args,
                                          uint32_t seed, char* error,
                                          size_t error_size) {
  if (tf_bn_ops::c_api::Report(error, error_size, [&] {
        return tf_bn_ops::c_api::CheckGatherStats(args);
      }) != 0) {
    return 1;
  }
  return gpu::EmulatorLauncher(seed).Gather(*args);
}

// The launch configuration of the gradient's reduction: grid size, threads_x,
// threads_y, threads_z, fold, strides, items, splits.
TFBN_EXPORT void tfbn_emulate_launch_config(int64_t outer, int64_t channels,
                                            int64_t inner, int32_t dtype,
                                            int64_t* out) {
  const gpu::LaunchConfig c =
      gpu::ReduceConfig(View{outer, channels, inner}, static_cast<DType>(dtype),
                        tf_bn_ops::BatchNormGradFormula::kNumSums);
  const int64_t values[] = {c.GridSize(), c.threads_x, c.threads_y, c.threads_z,
                            c.fold,       c.strides,   c.items,     c.splits};
  std::copy(std::begin(values), std::end(values), out);
}

#endif  // TFBN_EMULATED_FORMULA

}  // extern "C"
