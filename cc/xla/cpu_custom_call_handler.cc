// Handler of the custom call of cpu_custom_call.h: runs the CPU backend on the
// buffers and the thread pool that XLA's FFI passes to it.

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/executor.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"
#include "cc/xla/cpu_custom_call_target.h"
#include "xla/ffi/api/ffi.h"

// Exported by TensorFlow's libraries; its header includes half of XLA.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tf_bn_ops {
namespace {

// Runs on the session's intra-op thread pool, which TensorFlow passes to the
// program.
class FfiExecutor final : public Executor {
 public:
  explicit FfiExecutor(xla::ffi::ThreadPool pool)
      : pool_(pool), count_(static_cast<int>(pool_.num_threads())) {}
  int NumThreads() const override { return count_ > 1 ? count_ : 1; }
  void Schedule(std::function<void()> work) override {
    pool_.Schedule(std::move(work));
  }

 private:
  xla::ffi::ThreadPool pool_;
  const int count_;
};

// False for an element type that the library has no kernels for.
bool DTypeOfFfi(xla::ffi::DataType type, DType* dtype) {
  switch (type) {
    case xla::ffi::DataType::F16:
      *dtype = DType::kFloat16;
      return true;
    case xla::ffi::DataType::BF16:
      *dtype = DType::kBfloat16;
      return true;
    case xla::ffi::DataType::F32:
      *dtype = DType::kFloat32;
      return true;
    case xla::ffi::DataType::F64:
      *dtype = DType::kFloat64;
      return true;
    default:
      return false;
  }
}

using Buffer = xla::ffi::AnyBuffer;
using Result = xla::ffi::Result<xla::ffi::AnyBuffer>;

xla::ffi::Error Call(xla::ffi::ThreadPool pool, int64_t outer, int64_t channels,
                     int64_t inner, bool is_training, int64_t epsilon_bits,
                     Buffer y_backprop, Buffer x, Buffer scale, Buffer mean,
                     Buffer variance, Result x_backprop, Result scale_backprop,
                     Result offset_backprop, Result workspace) {
  std::string error;
  const Implementation* const implementation = SelectedImplementation(&error);
  if (implementation == nullptr) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kFailedPrecondition, error);
  }
  BatchNormGradArgs args;
  args.view = View{outer, channels, inner};
  if (!DTypeOfFfi(x.element_type(), &args.dtype) ||
      !DTypeOfFfi(scale.element_type(), &args.stat_dtype)) {
    return xla::ffi::Error::InvalidArgument(absl::StrCat(
        kCpuCustomCallTarget, " has no kernel for this element type"));
  }
  args.is_training = is_training;
  std::memcpy(&args.epsilon, &epsilon_bits, sizeof(args.epsilon));
  args.y_backprop = y_backprop.untyped_data();
  args.x = x.untyped_data();
  args.scale = scale.untyped_data();
  args.mean = mean.untyped_data();
  args.variance = variance.untyped_data();
  args.x_backprop = x_backprop->untyped_data();
  args.scale_backprop = scale_backprop->untyped_data();
  args.offset_backprop = offset_backprop->untyped_data();
  FfiExecutor executor(pool);
  RunOnCpu<BatchNormGradFormula>(args, *implementation, executor,
                                 workspace->untyped_data());
  return xla::ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kHandler, Call,
                       xla::ffi::Ffi::Bind()
                           .Ctx<xla::ffi::ThreadPool>()
                           .Attr<int64_t>("outer")
                           .Attr<int64_t>("channels")
                           .Attr<int64_t>("inner")
                           .Attr<bool>("is_training")
                           .Attr<int64_t>("epsilon_bits")
                           .Arg<Buffer>()    // y_backprop
                           .Arg<Buffer>()    // x
                           .Arg<Buffer>()    // scale
                           .Arg<Buffer>()    // mean
                           .Arg<Buffer>()    // variance
                           .Ret<Buffer>()    // x_backprop
                           .Ret<Buffer>()    // scale_backprop
                           .Ret<Buffer>()    // offset_backprop
                           .Ret<Buffer>());  // workspace
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kCpuCustomCallTarget, "Host",
                         kHandler);

}  // namespace

}  // namespace tf_bn_ops
