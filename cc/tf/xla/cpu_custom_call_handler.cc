// Handlers of the custom calls (cpu_custom_call.h): run the CPU backend on the
// buffers and the thread pool that XLA's FFI passes to them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/executor.h"
#include "cc/core/gather_stats.h"
#include "cc/core/records.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"
#include "cc/tf/xla/cpu_custom_call.h"
#include "xla/ffi/api/ffi.h"

// Exported by TensorFlow's libraries; its header includes half of XLA.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tf_bn_ops {
namespace {

using xla::ffi::Error;

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

using Numbers = xla::ffi::Span<const int64_t>;

Error RunCall(xla::ffi::ThreadPool pool, Numbers numbers, Numbers operand_roles,
              Numbers result_roles, xla::ffi::RemainingArgs operands,
              xla::ffi::RemainingRets results) try {
  std::string message;
  const Implementation* const implementation = SelectedImplementation(&message);
  if (implementation == nullptr) {
    return Error(xla::ffi::ErrorCode::kFailedPrecondition, message);
  }
  Call call;
  if (numbers.size() != kCallNumbers) {  // Edited by hand.
    return Error::InvalidArgument("the attribute \"call\" has another size");
  }
  std::memcpy(static_cast<void*>(&call), numbers.begin(),
              kCallNumbers * sizeof(int64_t));
  for (size_t i = 0; i < operand_roles.size(); ++i) {
    const auto buffer = operands.get<xla::ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    ArrayOf(call, static_cast<Role>(operand_roles.begin()[i])) =
        buffer->untyped_data();
  }
  for (size_t i = 0; i < result_roles.size(); ++i) {
    auto buffer = results.get<xla::ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    ArrayOf(call, static_cast<Role>(result_roles.begin()[i])) =
        buffer.value()->untyped_data();
  }
  auto workspace = results.get<xla::ffi::AnyBuffer>(result_roles.size());
  if (!workspace.has_value()) return workspace.error();
  FfiExecutor executor(pool);
  const int64_t begin = BeginOfCall();
  RunOnCpu(call, *implementation, executor, workspace.value()->untyped_data());
  if (begin != 0) {  // Which node it was is not known here.
    const int64_t dims[] = {call.view.outer, call.view.channels,
                            call.view.inner};
    RecordCall({"(programs of XLA)", "custom call", "CPU", call.formula,
                call.dtype, dims, 3, BytesOf(call)},
               begin, /*last=*/nullptr);
  }
  return Error::Success();
} catch (const std::exception& e) {  // XLA is not to be unwound.
  return Error(xla::ffi::ErrorCode::kResourceExhausted, e.what());
}

using Doubles = xla::ffi::Buffer<xla::ffi::F64>;

Error CallGatherStats(Doubles counts, Doubles means, Doubles m2s,
                      xla::ffi::Result<Doubles> count,
                      xla::ffi::Result<Doubles> mean,
                      xla::ffi::Result<Doubles> m2) {
  const GatherStatsArgs args = {static_cast<int64_t>(means.dimensions()[0]),
                                static_cast<int64_t>(means.dimensions()[1]),
                                counts.typed_data(),
                                means.typed_data(),
                                m2s.typed_data(),
                                count->typed_data(),
                                mean->typed_data(),
                                m2->typed_data()};
  const int64_t invalid = FindInvalidCount(args);
  if (invalid >= 0) {
    return Error::InvalidArgument(
        absl::StrCat("counts must be finite and not negative, but counts[",
                     invalid, "] is ", args.counts[invalid]));
  }
  GatherStats(args);
  return Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kGatherStatsHandler, CallGatherStats,
                       xla::ffi::Ffi::Bind()
                           .Arg<Doubles>()
                           .Arg<Doubles>()
                           .Arg<Doubles>()
                           .Ret<Doubles>()
                           .Ret<Doubles>()
                           .Ret<Doubles>());
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kGatherStatsTarget, "Host",
                         kGatherStatsHandler);

XLA_FFI_DEFINE_HANDLER(kCallHandler, RunCall,
                       xla::ffi::Ffi::Bind()
                           .Ctx<xla::ffi::ThreadPool>()
                           .Attr<Numbers>("call")
                           .Attr<Numbers>("operands")
                           .Attr<Numbers>("results")
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kCallTarget, "Host",
                         kCallHandler);

}  // namespace

}  // namespace tf_bn_ops
