// What the XLA kernels of all ops have in common.

#ifndef TF_BN_OPS_CC_XLA_XLA_OP_H_
#define TF_BN_OPS_CC_XLA_XLA_OP_H_

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cc/xla/cpu_custom_call.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// What TF_BN_OPS_XLA says; empty where it is not set.
inline std::string CompileVariable() {
  const char* const value = std::getenv("TF_BN_OPS_XLA");
  return value == nullptr ? "" : value;
}

// Whether a program for the CPU calls the CPU backend. Not with
// TF_BN_OPS_XLA=hlo, for programs that run in a process without this library.
inline bool CallsCpuBackend() { return CompileVariable() != "hlo"; }

// An error where the variable has a value that says nothing: a program that was
// meant for other processes would fail in them.
inline absl::Status CheckCompileVariable() {
  const std::string value = CompileVariable();
  if (value.empty() || value == "hlo") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the environment variable TF_BN_OPS_XLA is '", value,
      "': set it to hlo, which compiles the formulas, or not at all"));
}

template <typename Args>
std::vector<xla::XlaOp> Build(bool is_cpu, const Args& args) {
  return is_cpu && CallsCpuBackend() ? BuildCpuCustomCall(args)
                                     : BuildHlo(args);
}

// The shape of an input; dimensions that are known at run time alone are an
// error.
inline absl::Status StaticShape(tensorflow::XlaOpKernelContext* context,
                                int input, xla::Shape* xla_shape,
                                tensorflow::TensorShape* shape) {
  const absl::StatusOr<xla::Shape> found = context->InputXlaShape(input);
  if (!found.ok()) return found.status();
  if (!found->is_static()) {
    return absl::UnimplementedError(absl::StrCat(
        "batch-norm ops are compiled for shapes that are known, but input ",
        input, " has shape ", found->ToString()));
  }
  *xla_shape = *found;
  return tensorflow::XLAShapeToTensorShape(*found, shape);
}

// Not REGISTER_XLA_OP, whose kernels TensorFlow takes into account until the
// first use of XLA in the process: this library may be loaded later. Types need
// no constraint, but for U of V3, which has placeholders of type float: XLA has
// all those that the ops allow.
#define TFBN_REGISTER_XLA_OP(op, Kernel, ...)                                 \
  REGISTER_KERNEL_BUILDER(                                                    \
      Name(op).Device(::tensorflow::DEVICE_CPU_XLA_JIT) __VA_ARGS__, Kernel); \
  REGISTER_KERNEL_BUILDER(                                                    \
      Name(op).Device(::tensorflow::DEVICE_GPU_XLA_JIT) __VA_ARGS__, Kernel)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_XLA_OP_H_
