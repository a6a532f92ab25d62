// Registers this library's CPU kernels for TensorFlow's own batch-norm ops,
// forward and gradient, in every process that loads this library: of the
// kernels that are registered for an op, the one of the highest priority runs.
//
// A kernel is registered exactly where TensorFlow has one, with the same
// constraints: versions differ in the element types that oneDNN takes, and
// TensorFlow renames an op to oneDNN's name wherever it finds a kernel for that
// name. The exception is _FusedBatchNormGradEx, which has kernels on GPUs alone
// and no name of oneDNN's.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cc/tf/kernels/batch_norm_op.h"
#include "cc/tf/kernels/cpu_launch.h"
#include "cc/tf/kernels/generated/kernel_list.h"
#include "cc/tf/ops/first_copy.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DT_BFLOAT16;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_HALF;
using ::tensorflow::KernelDef;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;

// TensorFlow's kernels have priority 0.
constexpr int kPriority = 1;

bool TakesAny(const KernelDef& kernel, const std::vector<DataType>& types) {
  return absl::c_any_of(kernel.constraint(), [&](const auto& constraint) {
    return constraint.name() == "T" &&
           absl::c_any_of(types, [&](DataType type) {
             return absl::c_linear_search(
                 constraint.allowed_values().list().type(), type);
           });
  });
}

// Ours beside the kernels of TensorFlow that have this op name, label and one
// of these types of x.
template <typename Kernel>
void RegisterBeside(const std::string& op, const char* label,
                    const std::vector<DataType>& types) {
  const auto theirs = tensorflow::GetRegisteredKernelsForOp(op);
  for (const KernelDef& kernel : theirs.kernel()) {
    if (kernel.device_type() != tensorflow::DEVICE_CPU ||
        kernel.label() != label || !TakesAny(kernel, types)) {
      continue;
    }
    auto* ours = new KernelDef(kernel);  // The registrar owns it.
    ours->set_priority(kPriority);
    tensorflow::kernel_factory::OpKernelRegistrar(
        ours, "tf_bn_ops::BatchNormOp",
        [](OpKernelConstruction* context) -> OpKernel* {
          return new Kernel(context);
        });
  }
}

// By its own name, and by the one that TensorFlow renames it to with oneDNN.
template <const OpSignature& kOp>
void Override(const char* op, const std::vector<DataType>& types) {
  using Kernel = BatchNormOp<kOp, CpuBackend>;
  RegisterBeside<Kernel>(op, "", types);
  RegisterBeside<Kernel>(absl::StrCat("_MklNative", absl::StripPrefix(op, "_")),
                         "MklNameChangeOp", types);
}

bool OverrideAll() {
#define T(...) {__VA_ARGS__}
#define OVERRIDE(op, types, constraints) Override<k##op>(#op, types);
  TFBN_FOR_EACH_TWIN_KERNEL(OVERRIDE)
#undef T
  // To which grappler fuses a forward op and the Relu behind it where oneDNN is
  // on. With an activation reserve_space_3 holds the forward coefficients, for
  // _FusedBatchNormGradEx.
  Override<kFusedBatchNormEx>("_FusedBatchNormEx",
                              {DT_HALF, DT_BFLOAT16, DT_FLOAT});
  // In the types that its OpDef allows.
  REGISTER_KERNEL_BUILDER(Name("_FusedBatchNormGradEx")
                              .Device(tensorflow::DEVICE_CPU)
                              .TypeConstraint("T", {DT_HALF, DT_FLOAT})
                              .Priority(kPriority),
                          BatchNormOp<kFusedBatchNormGradEx, CpuBackend>);
  return true;
}

// A second copy registers nothing.
[[maybe_unused]] const bool kOverridden =
    !HasKernel("_FusedBatchNormGradEx", tensorflow::DEVICE_CPU) &&
    OverrideAll();

}  // namespace
}  // namespace tf_bn_ops
