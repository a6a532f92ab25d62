// XLA kernels, for jit_compile=True, of all ops: one source, because each one
// that includes XLA's headers takes most of a minute to compile.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/cpu/driver.h"
#include "cc/tf/kernels/generated/kernel_list.h"
#include "cc/tf/ops/first_copy.h"
#include "cc/tf/ops/op_call.h"
#include "cc/tf/xla/cpu_custom_call.h"
#include "cc/tf/xla/hlo_channels.h"
#include "cc/tf/xla/hlo_forward.h"
#include "cc/tf/xla/hlo_gradient.h"
#include "cc/tf/xla/hlo_second_order.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// Base of the XLA kernels.
class XlaKernel : public tf::XlaOpKernel {
 public:
  explicit XlaKernel(tf::OpKernelConstruction* context)
      : XlaOpKernel(context),
        is_cpu_(context->device_type() == tf::DEVICE_CPU_XLA_JIT) {}

 protected:
  // The shapes of all inputs; dimensions that are known at run time alone are
  // an error.
  absl::Status ReadShapes(tf::XlaOpKernelContext* context,
                          std::vector<xla::Shape>* xla_shapes,
                          std::vector<tf::TensorShape>* shapes) {
    TF_RETURN_IF_ERROR(ReadVariable());
    for (int i = 0; i < context->num_inputs(); ++i) {
      const absl::StatusOr<xla::Shape> found = context->InputXlaShape(i);
      if (!found.ok()) return found.status();
      if (!found->is_static()) {
        return absl::UnimplementedError(absl::StrCat(
            "batch-norm ops are compiled for shapes that are known, but input ",
            i, " has shape ", found->ToString()));
      }
      xla_shapes->push_back(*found);
      shapes->emplace_back();
      TF_RETURN_IF_ERROR(tf::XLAShapeToTensorShape(*found, &shapes->back()));
    }
    return absl::OkStatus();
  }

  // Whether the program calls the CPU backend.
  bool calls_backend() const { return is_cpu_ && !is_hlo_; }
  bool is_cpu() const { return is_cpu_; }

 private:
  // TF_BN_OPS_XLA=hlo compiles the formulas, for programs that run in a process
  // without this library. An error where it has a value that says nothing: a
  // program that was meant for other processes would fail in them.
  absl::Status ReadVariable() {
    const char* const set = std::getenv("TF_BN_OPS_XLA");
    const std::string value = set == nullptr ? "" : set;
    is_hlo_ = value == "hlo";
    if (value.empty() || is_hlo_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment variable TF_BN_OPS_XLA is '", value,
        "': set it to hlo, which compiles the formulas, or not at all"));
  }

  const bool is_cpu_;
  bool is_hlo_ = false;
};

// The CPU backend reads elements in the order of the dimensions.
xla::Shape InOrder(xla::Shape shape) {
  *shape.mutable_layout() = xla::LayoutUtil::GetDefaultLayoutForShape(shape);
  return shape;
}
xla::Shape InOrder(xla::PrimitiveType type, const std::vector<int64_t>& sizes) {
  return InOrder(xla::ShapeUtil::MakeShape(type, sizes));
}

// The results of a custom call.
std::vector<xla::XlaOp> CustomCall(const char* target,
                                   const std::vector<xla::XlaOp>& operands,
                                   const std::vector<xla::Shape>& shapes,
                                   const std::vector<xla::Shape>& results,
                                   const std::string& attributes) {
  const xla::XlaOp call = xla::CustomCallWithLayout(
      operands[0].builder(), target, operands,
      xla::ShapeUtil::MakeTupleShape(results), shapes, attributes,
      /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
      /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<xla::XlaOp> values;
  for (size_t i = 0; i < results.size(); ++i) {
    values.push_back(xla::GetTupleElement(call, static_cast<int64_t>(i)));
  }
  return values;
}

xla::Shape ShapeOf(const XlaCall& call, Role role) {
  const int64_t channels = call.call.view.channels;
  const bool is_wide = DTypeOf(call.call, role) == DType::kFloat64;
  switch (kRoles[static_cast<int>(role)].kind) {
    case ArrayKind::kView:
      return InOrder(call.shape);
    case ArrayKind::kScalar:
      return InOrder(xla::F64, {});
    case ArrayKind::kCoefficients:
      return InOrder(is_wide ? xla::F64 : xla::F32,
                     {kNumForwardCoefficients, channels});
    default:
      return InOrder(is_wide ? xla::F64 : call.stat_type, {channels});
  }
}

// An attribute as MLIR text.
std::string ArrayAttribute(const char* name,
                           const std::vector<int64_t>& numbers) {
  return absl::StrCat(name, " = array<i64", numbers.empty() ? "" : ": ",
                      absl::StrJoin(numbers, ", "), ">");
}

void BuildCpuCall(XlaCall* call) {
  std::vector<int64_t> numbers(kCallNumbers), operand_roles, result_roles;
  std::memcpy(numbers.data(), static_cast<const void*>(&call->call),
              numbers.size() * sizeof(int64_t));
  std::vector<xla::XlaOp> operands;
  std::vector<xla::Shape> shapes, results;
  for (int i = 0; i < kNumRoles; ++i) {
    const auto role = static_cast<Role>(i);
    if (!call->Has(role)) continue;
    operands.push_back((*call)[role]);
    shapes.push_back(ShapeOf(*call, role));
    operand_roles.push_back(i);
  }
  for (const Role role : call->outputs) {
    results.push_back(ShapeOf(*call, role));
    result_roles.push_back(static_cast<int64_t>(role));
  }
  const auto workspace = static_cast<int64_t>(
      CpuWorkspaceBytes(call->call.formula, call->call.view, call->call.dtype));
  results.push_back(InOrder(xla::U8, {workspace}));
  const std::vector<xla::XlaOp> values =
      CustomCall(kCallTarget, operands, shapes, results,
                 absl::StrCat("{", ArrayAttribute("call", numbers), ", ",
                              ArrayAttribute("operands", operand_roles), ", ",
                              ArrayAttribute("results", result_roles), "}"));
  for (size_t i = 0; i < call->outputs.size(); ++i) {
    (*call)[call->outputs[i]] = values[i];
  }
}

// The XLA kernel of an op: shapes -> call -> operations -> outputs.
class BatchNormXlaKernel : public XlaKernel {
 public:
  BatchNormXlaKernel(const OpSignature& op, tf::OpKernelConstruction* context)
      : XlaKernel(context) {
    OP_REQUIRES_OK(context,
                   op_.ReadAttrs(op, /*saves_rstd=*/!is_cpu(), context));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    XlaCall call;
    OP_REQUIRES_OK(context, Read(context, &call));
    Build(&call);
    const tf::Tensor placeholder(tf::DT_FLOAT, tf::TensorShape({0}));
    for (int i = 0; i < context->num_outputs(); ++i) {
      const Role role = op_.signature().Output(i).role;
      if (role == Role::kLocalCount) {  // It follows from the shape.
        context->SetOutput(
            i, xla::ConstantR0<double>(call[Role::kX].builder(),
                                       LocalCountOf(call.call.view)));
      } else if (IsComputed(call.call, role)) {
        context->SetOutput(i, call[role]);
      } else {
        context->SetConstantOutput(i, placeholder);
      }
    }
  }

 private:
  static bool IsComputed(const Call& call, Role role) {
    return role == Role::kForwardCoefficients
               ? OpCall::KeepsCoefficients(call)
               : role != Role::kNone && role != Role::kLocalCount;
  }

  absl::Status Read(tf::XlaOpKernelContext* context, XlaCall* call) {
    std::vector<xla::Shape> xla_shapes;
    std::vector<tf::TensorShape> shapes;
    TF_RETURN_IF_ERROR(ReadShapes(context, &xla_shapes, &shapes));
    std::vector<const tf::TensorShape*> pointers;
    for (const tf::TensorShape& shape : shapes) pointers.push_back(&shape);
    const int count = context->num_inputs(), x = op_.signature().x;
    TF_RETURN_IF_ERROR(op_.Make(pointers.data(), count, &call->call));
    call->channel_dim = op_.ChannelDim(shapes[x].dims());
    call->shape = xla_shapes[x];
    for (int i = 0; i < count; ++i) {
      const Role role = op_.InputRole(call->call, i, shapes[i]);
      if (role == Role::kScale) call->stat_type = xla_shapes[i].element_type();
      if (role == Role::kNone) continue;
      (*call)[role] = context->Input(i);
    }
    for (int i = 0; i < context->num_outputs(); ++i) {
      const Role role = op_.signature().Output(i).role;
      if (IsComputed(call->call, role)) call->outputs.push_back(role);
    }
    return absl::OkStatus();
  }

  // The second order is in XLA's own operations on every device: XLA fuses them
  // with what surrounds a second derivative.
  void Build(XlaCall* call) const {
    if (call->call.formula == FormulaKind::kSecondOrder) {
      BuildSecondOrder(call);
    } else if (calls_backend()) {
      BuildCpuCall(call);
    } else if (call->call.formula == FormulaKind::kForward) {
      BuildForward(call);
    } else {
      BuildGradient(call);
    }
  }

  OpCall op_;
};

template <const OpSignature& kOp>
class BatchNormXlaOp : public BatchNormXlaKernel {
 public:
  explicit BatchNormXlaOp(tf::OpKernelConstruction* context)
      : BatchNormXlaKernel(kOp, context) {}
};

class GatherStatsXlaOp : public XlaKernel {
 public:
  using XlaKernel::XlaKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<xla::Shape> xla_shapes;
    std::vector<tf::TensorShape> shapes;
    OP_REQUIRES_OK(context, ReadShapes(context, &xla_shapes, &shapes));
    tf::PartialTensorShape partial[3], unused;
    std::vector<xla::XlaOp> inputs;
    for (int i = 0; i < 3; ++i) {
      partial[i] = tf::PartialTensorShape(shapes[i].dim_sizes());
      inputs.push_back(context->Input(i));
    }
    OP_REQUIRES_OK(context, CheckGatherStatsShapes(partial, &unused));
    const int64_t parts = shapes[1].dim_size(0), size = shapes[1].dim_size(1);
    const xla::Shape rows = InOrder(xla::F64, {parts, size}),
                     row = InOrder(xla::F64, {size});
    const std::vector<xla::XlaOp> outputs =
        calls_backend()
            ? CustomCall(kGatherStatsTarget, inputs,
                         {InOrder(xla::F64, {parts}), rows, rows},
                         {InOrder(xla::F64, {}), row, row}, "{}")
            : BuildGatherStats(inputs[0], inputs[1], inputs[2], parts, size);
    for (int i = 0; i < 3; ++i) context->SetOutput(i, outputs[i]);
  }
};

// Not REGISTER_XLA_OP, whose kernels TensorFlow takes into account until the
// first use of XLA in the process: this library may be loaded later.
#define REGISTER_ON_BOTH(kernel_name, ...)                                \
  REGISTER_KERNEL_BUILDER(                                                \
      kernel_name.Device(::tensorflow::DEVICE_CPU_XLA_JIT), __VA_ARGS__); \
  REGISTER_KERNEL_BUILDER(                                                \
      kernel_name.Device(::tensorflow::DEVICE_GPU_XLA_JIT), __VA_ARGS__)

using ::tensorflow::DT_BFLOAT16;
using ::tensorflow::DT_DOUBLE;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_HALF;

#define T(...) .TypeConstraint("T", {__VA_ARGS__})
#define U(type) .TypeConstraint("U", type)
#define HOST(output)
#define REGISTER_KERNEL(op, types, constraints)            \
  REGISTER_ON_BOTH(Name("TfBnOps>" #op) types constraints, \
                   BatchNormXlaOp<k##op>);
bool RegisterKernels() {
  TFBN_FOR_EACH_TWIN_KERNEL(REGISTER_KERNEL)
  TFBN_FOR_EACH_OTHER_KERNEL(REGISTER_KERNEL)
  REGISTER_ON_BOTH(Name("TfBnOps>BatchNormGatherStats"), GatherStatsXlaOp);
  return true;
}

// A second copy registers nothing.
[[maybe_unused]] const bool kRegistered =
    !HasKernel("TfBnOps>FusedBatchNormGrad", tensorflow::DEVICE_CPU_XLA_JIT) &&
    RegisterKernels();

}  // namespace
}  // namespace tf_bn_ops
