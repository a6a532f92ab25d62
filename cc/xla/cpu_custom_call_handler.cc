// Handlers of the custom calls of cpu_custom_call.h: run the CPU backend on the
// buffers and the thread pool that XLA's FFI passes to them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/executor.h"
#include "cc/core/gather_stats.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"
#include "cc/xla/cpu_custom_call_lists.h"
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

// Sets members of formula arguments to the buffers of a call, one after the
// other (see CpuCustomCall). What is wrong ends in error().
class BufferReader {
 public:
  BufferReader(xla::ffi::RemainingArgs operands,
               xla::ffi::RemainingRets results, DType* dtype, DType* stat_dtype)
      : operands_(operands),
        results_(results),
        dtype_(dtype),
        stat_dtype_(stat_dtype) {}

  // Members of type const void* are operands; y, which is an output of the
  // forward pass and an input of its gradient, follows where they are.
  template <typename Pointer>
  void Data(Pointer& member) {
    Read(dtype_, member);
  }
  template <typename Pointer>
  void Vector(Pointer& member) {
    Read(stat_dtype_, member);
  }
  template <typename Pointer>
  void Wide(Pointer& member) {
    Read(&unused_, member);
  }
  void Scalar(const void*& member) { Read(&unused_, member); }
  void BeginResults() { reads_results_ = true; }
  void* ReadResult() {
    auto buffer = results_.get<xla::ffi::AnyBuffer>(next_result_++);
    if (buffer.has_value()) return buffer.value()->untyped_data();
    error_ = buffer.error();
    return nullptr;
  }

  const Error& error() const { return error_; }

 private:
  template <typename Pointer>
  void Read(DType* dtype, Pointer& member) {
    void* data = nullptr;
    if (reads_results_) {
      data = ReadResult();
    } else {
      ReadOperand(dtype, &data);
    }
    member = data;
  }
  void ReadOperand(DType* dtype, void** member) {
    auto buffer = operands_.get<xla::ffi::AnyBuffer>(next_operand_++);
    if (!buffer.has_value()) {
      error_ = buffer.error();
    } else if (!DTypeOfFfi(buffer.value().element_type(), dtype)) {
      error_ = Error::InvalidArgument(
          "tf_bn_ops has no kernel for this element type");
    } else {
      *member = buffer.value().untyped_data();
    }
  }

  const xla::ffi::RemainingArgs operands_;
  const xla::ffi::RemainingRets results_;
  DType* const dtype_;
  DType* const stat_dtype_;
  DType unused_;
  bool reads_results_ = false;
  size_t next_operand_ = 0, next_result_ = 0;
  Error error_ = Error::Success();
};

template <typename C>
Error RunCall(xla::ffi::ThreadPool pool, xla::ffi::Dictionary attributes,
              xla::ffi::RemainingArgs operands,
              xla::ffi::RemainingRets results) {
  std::string message;
  const Implementation* const implementation = SelectedImplementation(&message);
  if (implementation == nullptr) {
    return Error(xla::ffi::ErrorCode::kFailedPrecondition, message);
  }
  using F = typename CpuCustomCall<C>::Formula;
  Call args;
  args.formula = F::kKind;
  Error error = Error::Success();
  AllAttributes<C>(args, [&](const char* name, auto& member) {
    const auto bits = attributes.get<int64_t>(name);
    if (bits.has_value()) {
      SetFromBits(bits.value(), &member);
    } else {
      error = bits.error();
    }
  });
  if (error.failure()) return error;
  BufferReader reader(operands, results, &args.dtype, &args.stat_dtype);
  CpuCustomCall<C>::Operands(args, reader);
  reader.BeginResults();
  CpuCustomCall<C>::Results(args, reader);
  void* const workspace = reader.ReadResult();
  if (reader.error().failure()) return reader.error();
  FfiExecutor executor(pool);
  RunOnCpu(args, *implementation, executor, workspace);
  return Error::Success();
}

Error CallGatherStats(xla::ffi::Buffer<xla::ffi::F64> counts,
                      xla::ffi::Buffer<xla::ffi::F64> means,
                      xla::ffi::Buffer<xla::ffi::F64> m2s,
                      xla::ffi::Result<xla::ffi::Buffer<xla::ffi::F64>> count,
                      xla::ffi::Result<xla::ffi::Buffer<xla::ffi::F64>> mean,
                      xla::ffi::Result<xla::ffi::Buffer<xla::ffi::F64>> m2) {
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
                           .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                           .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                           .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                           .Ret<xla::ffi::Buffer<xla::ffi::F64>>()
                           .Ret<xla::ffi::Buffer<xla::ffi::F64>>()
                           .Ret<xla::ffi::Buffer<xla::ffi::F64>>());
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kGatherStatsTarget, "Host",
                         kGatherStatsHandler);

#define TFBN_REGISTER_CPU_CUSTOM_CALL(F)                  \
  XLA_FFI_DEFINE_HANDLER(k##F##Handler, RunCall<F>,       \
                         xla::ffi::Ffi::Bind()            \
                             .Ctx<xla::ffi::ThreadPool>() \
                             .Attrs()                     \
                             .RemainingArgs()             \
                             .RemainingRets());           \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(),      \
                           CpuCustomCall<F>::kTarget, "Host", k##F##Handler)

TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormAddFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormGradFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormGradExFromYFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormGradExAddFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormStatsCall);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormElemtCall);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormElemtAddCall);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormBackwardReduceCall);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormBackwardReduceFromYCall);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormBackwardElemtFromXFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormBackwardElemtFromYFormula);
TFBN_REGISTER_CPU_CUSTOM_CALL(BatchNormBackwardElemtAddFormula);

}  // namespace

}  // namespace tf_bn_ops
