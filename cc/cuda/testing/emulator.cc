// The GPU kernels on the host, thread by thread: the block programs and the
// schedule of cc/cuda, compiled as plain C++ with the C ABI's struct. For tests
// of indices and arithmetic without a GPU, and for comparing bits with one.
//
//   g++ -std=c++17 -O1 -ffp-contract=off -shared -fPIC -I. -o emulator.so
//     cc/cuda/testing/emulator.cc cc/c_api/args.cc

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cc/c_api/args.h"
#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/cuda/schedule.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Threads of a phase run in some order: every order has to give the same.
class HostBlock {
 public:
  HostBlock(int64_t index, const std::vector<int>& order)
      : index_(index), order_(order) {}
  int64_t Index() const { return index_; }
  template <typename F>
  void ForEach(const F& f) {
    for (const int t : order_) f(t);
  }

 private:
  const int64_t index_;
  const std::vector<int>& order_;
};

class HostLauncher {
 public:
  // `seed` 0: threads and blocks in their order; otherwise shuffled.
  explicit HostLauncher(uint32_t seed) : random_(seed), order_(kThreads) {
    std::iota(order_.begin(), order_.end(), 0);
    Shuffle(order_);
  }

  template <typename T, bool kRows, bool kAligned, bool kWrite>
  int Reduce(const Params& params, int64_t blocks) {
    const auto shared = std::make_unique<ReduceShared<T, kRows>>();
    ForEachBlock(blocks, [&](HostBlock block) {
      Poison(*shared);
      cuda::Reduce<T, kRows, kAligned, kWrite>(params, block, *shared);
    });
    return 0;
  }
  template <typename C>
  int Finish(const Params& params, int64_t blocks) {
    const auto shared = std::make_unique<FinishShared>();
    ForEachBlock(blocks, [&](HostBlock block) {
      Poison(*shared);
      cuda::Finish<C>(params, block, *shared);
    });
    return 0;
  }
  template <typename T, bool kRows, bool kAligned>
  int Apply(const Params& params, int64_t blocks) {
    ForEachBlock(blocks, [&](HostBlock block) {
      cuda::Apply<T, kRows, kAligned>(params, block);
    });
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
    for (const int64_t index : indices) f(HostBlock(index, order_));
  }

  // What a block reads it must have written: NaNs where it has not.
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
  std::vector<int> order_;
};

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

extern "C" {

TFBN_EXPORT int64_t tfbn_emulate_workspace(int64_t outer, int64_t channels,
                                           int64_t inner, int32_t dtype) {
  return static_cast<int64_t>(
      tf_bn_ops::cuda::WorkspaceBytes(tf_bn_ops::View{outer, channels, inner},
                                      static_cast<tf_bn_ops::DType>(dtype)));
}

// `seed` other than 0 shuffles the order of threads and blocks; `group_bytes`
// as in CudaBatchNormGrad; `launches`, if not null, gets their number.
TFBN_EXPORT int tfbn_emulate(const tfbn_batch_norm_grad_args* c_args,
                             void* workspace, uint32_t seed,
                             int64_t group_bytes, int32_t* launches,
                             char* error, size_t error_size) {
  tf_bn_ops::BatchNormGradArgs args;
  const std::string sentence = tf_bn_ops::c_api::ReadArgs(c_args, &args);
  if (!sentence.empty()) {
    return tf_bn_ops::c_api::Fail(sentence, error, error_size);
  }
  tf_bn_ops::cuda::HostLauncher launcher(seed);
  tf_bn_ops::cuda::DeviceTraits traits;
  traits.group_bytes = group_bytes;
  const int failed = tf_bn_ops::cuda::Run(args, workspace, traits, launcher);
  if (launches != nullptr) *launches = launcher.launches();
  return failed;
}

// Bytes of both inputs in a group that a device with this L2 cache and memory
// would make of the view, or 0 where it would make none.
TFBN_EXPORT int64_t tfbn_emulate_group_bytes(int64_t outer, int64_t channels,
                                             int64_t inner, int32_t dtype,
                                             int64_t l2_bytes,
                                             double bytes_per_second) {
  tf_bn_ops::cuda::Params params;
  params.args.view = tf_bn_ops::View{outer, channels, inner};
  params.args.dtype = static_cast<tf_bn_ops::DType>(dtype);
  params.geometry =
      tf_bn_ops::cuda::ReduceGeometry(params.args.view, params.args.dtype);
  const tf_bn_ops::cuda::Geometry& g = params.geometry;
  const int64_t tiles = tf_bn_ops::cuda::TilesPerGroup(
      params, g, tf_bn_ops::cuda::TraitsOf(l2_bytes, bytes_per_second));
  const int64_t size =
      static_cast<int64_t>(tf_bn_ops::SizeOf(params.args.dtype));
  return tiles == g.tiles ? 0 : 2 * g.elements * size / g.tiles * tiles;
}

// The cut of the sums: grid, lanes, channels, item lanes, fold, steps, items,
// block ranges.
TFBN_EXPORT void tfbn_emulate_geometry(int64_t outer, int64_t channels,
                                       int64_t inner, int32_t dtype,
                                       int64_t* out) {
  const tf_bn_ops::cuda::Geometry g =
      tf_bn_ops::cuda::ReduceGeometry(tf_bn_ops::View{outer, channels, inner},
                                      static_cast<tf_bn_ops::DType>(dtype));
  const int64_t values[] = {g.Grid(), g.lanes, g.channels, g.item_lanes,
                            g.fold,   g.steps, g.items,    g.blocks};
  std::copy(std::begin(values), std::end(values), out);
}

}  // extern "C"
