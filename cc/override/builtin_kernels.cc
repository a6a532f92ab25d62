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

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cc/kernels/batch_norm_op.h"
#include "cc/kernels/cpu_launch.h"
#include "cc/kernels/generated/kernel_list.h"
#include "cc/ops/errors.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {
namespace {

using ::Eigen::bfloat16;
using ::Eigen::half;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeToEnum;
using ::tensorflow::KernelDef;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;

// TensorFlow's kernels have priority 0.
constexpr int kPriority = 1;

// TensorFlow's _FusedBatchNormEx, to which grappler fuses a forward op and the
// Relu behind it where oneDNN is on. Its OpDef has no bessel_correction. With
// an activation reserve_space_3 holds the forward coefficients, for
// _FusedBatchNormGradEx.
struct BuiltinExSpec : FusedBatchNormExSpec<0> {
  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    int64_t side_inputs;
    TF_RETURN_IF_ERROR(context->GetAttr("num_side_inputs", &side_inputs));
    if (side_inputs != 0) {
      return InvalidArgument(
          "_FusedBatchNormEx takes no side input on a CPU, num_side_inputs is ",
          side_inputs);
    }
    return ReadBuiltinAttrs(context);
  }
};

bool TakesType(const KernelDef& kernel, DataType dtype) {
  return absl::c_any_of(kernel.constraint(), [dtype](const auto& constraint) {
    return constraint.name() == "T" &&
           absl::c_linear_search(constraint.allowed_values().list().type(),
                                 dtype);
  });
}

// Ours beside those of TensorFlow that have this op name, label and type of x.
template <typename Kernel>
void RegisterBeside(const std::string& op, const char* label, DataType dtype) {
  const auto theirs = tensorflow::GetRegisteredKernelsForOp(op);
  for (const KernelDef& kernel : theirs.kernel()) {
    if (kernel.device_type() != tensorflow::DEVICE_CPU ||
        kernel.label() != label || !TakesType(kernel, dtype)) {
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
template <typename Spec, typename T>
void Override(const char* op) {
  using Kernel = BatchNormOp<Spec, T, float, CpuBackend>;
  const DataType dtype = DataTypeToEnum<T>::value;
  RegisterBeside<Kernel>(op, "", dtype);
  RegisterBeside<Kernel>(absl::StrCat("_MklNative", absl::StripPrefix(op, "_")),
                         "MklNameChangeOp", dtype);
}

bool OverrideAll() {
#define OVERRIDE(op, T, U, constraints, Spec) Override<Spec, T>(#op);
  TFBN_FOR_EACH_TWIN_KERNEL(OVERRIDE)
  Override<BuiltinExSpec, half>("_FusedBatchNormEx");
  Override<BuiltinExSpec, bfloat16>("_FusedBatchNormEx");
  Override<BuiltinExSpec, float>("_FusedBatchNormEx");
  return true;
}

// In the types that the OpDef of _FusedBatchNormGradEx allows.
#define REGISTER_GRADIENT_EX(T, side_inputs)                       \
  REGISTER_KERNEL_BUILDER(                                         \
      Name("_FusedBatchNormGradEx")                                \
          .Device(tensorflow::DEVICE_CPU)                          \
          .TypeConstraint<T>("T")                                  \
          .AttrConstraint<int64_t>("num_side_inputs", side_inputs) \
          .Priority(kPriority),                                    \
      BatchNormOp<FusedBatchNormGradExSpec<side_inputs>, T, float, \
                  CpuBackend>)
REGISTER_GRADIENT_EX(half, 0);
REGISTER_GRADIENT_EX(half, 1);
REGISTER_GRADIENT_EX(float, 0);
REGISTER_GRADIENT_EX(float, 1);

[[maybe_unused]] const bool kOverridden = OverrideAll();

}  // namespace
}  // namespace tf_bn_ops
