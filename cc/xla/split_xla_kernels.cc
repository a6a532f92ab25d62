// XLA kernels, for jit_compile=True, of the ops that synchronised batch
// normalization consists of.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/split_op_specs.h"
#include "cc/xla/hlo_split.h"
#include "cc/xla/spec_xla_op.h"
#include "cc/xla/xla_op.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// Without an activation y is not read, and may be missing.
void ReplaceUnreadInputs(XlaArgs*) {}
void ReplaceUnreadInputs(XlaBackwardElemtAddArgs* args) {
  if (!args->y.valid()) args->y = args->x;
}

// The input that says what type vectors have; x where there is none.
template <typename Spec>
constexpr int kVectorInput = Spec::kScale;
template <>
constexpr int kVectorInput<BatchNormStatsSpec> = BatchNormStatsSpec::kX;

// The XLA kernel of a part, from the Spec (cc/ops) that its other kernels use:
// validate -> view -> arguments -> operations -> outputs.
template <typename Spec, typename Args>
class SplitXlaOp : public SpecXlaOp<Spec, Args> {
 public:
  using SpecXlaOp<Spec, Args>::SpecXlaOp;

  void Compile(tf::XlaOpKernelContext* context) override {
    Args args;
    OP_REQUIRES_OK(context, this->ReadCall(context, kVectorInput<Spec>, &args));
    ReplaceUnreadInputs(&args);
    SetOutputs(context, args, Build(this->is_cpu_, args));
  }

 private:
  // The last outputs; BatchNormStats has the count before them.
  static void SetOutputs(tf::XlaOpKernelContext* context, const Args& args,
                         const std::vector<xla::XlaOp>& outputs) {
    int first = 0;
    if constexpr (kIsStats) {
      first = 1;
      context->SetOutput(
          0, xla::ConstantR0<double>(
                 args.x.builder(),
                 static_cast<double>(ElementsPerChannel(args.view))));
    }
    for (int i = first; i < context->num_outputs(); ++i) {
      context->SetOutput(i, outputs[i - first]);
    }
  }

  static constexpr bool kIsStats = std::is_same_v<Spec, BatchNormStatsSpec>;
};

class GatherStatsXlaOp : public tf::XlaOpKernel {
 public:
  explicit GatherStatsXlaOp(tf::OpKernelConstruction* context)
      : XlaOpKernel(context),
        is_cpu_(context->device_type() == tf::DEVICE_CPU_XLA_JIT) {}

  void Compile(tf::XlaOpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckCompileVariable());
    xla::Shape unused;
    tf::TensorShape shapes[3];
    tf::PartialTensorShape partial[3], channels;
    std::vector<xla::XlaOp> inputs;
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(context, StaticShape(context, i, &unused, &shapes[i]));
      partial[i] = tf::PartialTensorShape(shapes[i].dim_sizes());
      inputs.push_back(context->Input(i));
    }
    OP_REQUIRES_OK(context, CheckGatherStatsShapes(partial, &channels));
    const int64_t parts = shapes[1].dim_size(0), size = shapes[1].dim_size(1);
    const std::vector<xla::XlaOp> outputs =
        is_cpu_ && CallsCpuBackend()
            ? CpuCall(inputs, parts, size)
            : BuildGatherStats(inputs[0], inputs[1], inputs[2], parts, size);
    for (int i = 0; i < 3; ++i) context->SetOutput(i, outputs[i]);
  }

 private:
  static std::vector<xla::XlaOp> CpuCall(const std::vector<xla::XlaOp>& inputs,
                                         int64_t parts, int64_t channels) {
    const auto in_order = [](const std::vector<int64_t>& sizes) {
      xla::Shape shape = xla::ShapeUtil::MakeShape(xla::F64, sizes);
      *shape.mutable_layout() =
          xla::LayoutUtil::GetDefaultLayoutForShape(shape);
      return shape;
    };
    const xla::XlaOp call = xla::CustomCallWithLayout(
        inputs[0].builder(), kGatherStatsTarget, inputs,
        xla::ShapeUtil::MakeTupleShape(
            {in_order({}), in_order({channels}), in_order({channels})}),
        {in_order({parts}), in_order({parts, channels}),
         in_order({parts, channels})},
        "{}", /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
        /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    std::vector<xla::XlaOp> outputs;
    for (int64_t i = 0; i < 3; ++i) {
      outputs.push_back(xla::GetTupleElement(call, i));
    }
    return outputs;
  }

  const bool is_cpu_;
};

using StatsXlaOp = SplitXlaOp<BatchNormStatsSpec, XlaStatsArgs>;
using ElemtXlaOp = SplitXlaOp<BatchNormElemtSpec<0>, XlaElemtArgs>;
using ElemtAddXlaOp = SplitXlaOp<BatchNormElemtSpec<1>, XlaElemtAddArgs>;
using BackwardReduceXlaOp =
    SplitXlaOp<BatchNormBackwardReduceSpec<0>, XlaBackwardReduceArgs>;
using BackwardReduceFromYXlaOp =
    SplitXlaOp<BatchNormBackwardReduceSpec<1>, XlaBackwardReduceFromYArgs>;
using BackwardElemtXlaOp =
    SplitXlaOp<BatchNormBackwardElemtSpec<0, 0>, XlaBackwardElemtFromXArgs>;
using BackwardElemtFromYXlaOp =
    SplitXlaOp<BatchNormBackwardElemtSpec<1, 0>, XlaBackwardElemtFromYArgs>;
using BackwardElemtAddXlaOp =
    SplitXlaOp<BatchNormBackwardElemtSpec<0, 1>, XlaBackwardElemtAddArgs>;
using BackwardElemtAddFromYXlaOp =
    SplitXlaOp<BatchNormBackwardElemtSpec<1, 1>, XlaBackwardElemtAddArgs>;

#define YS(n) .AttrConstraint<int64_t>("num_y", n)
#define SIDE_INPUTS(n) .AttrConstraint<int64_t>("num_side_inputs", n)

TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormStats", StatsXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormGatherStats", GatherStatsXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormElemt", ElemtXlaOp, SIDE_INPUTS(0));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormElemt", ElemtAddXlaOp, SIDE_INPUTS(1));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormBackwardReduce", BackwardReduceXlaOp,
                     YS(0));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormBackwardReduce",
                     BackwardReduceFromYXlaOp, YS(1));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormBackwardElemt", BackwardElemtXlaOp,
                     YS(0) SIDE_INPUTS(0));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormBackwardElemt", BackwardElemtFromYXlaOp,
                     YS(1) SIDE_INPUTS(0));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormBackwardElemt", BackwardElemtAddXlaOp,
                     YS(0) SIDE_INPUTS(1));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormBackwardElemt",
                     BackwardElemtAddFromYXlaOp, YS(1) SIDE_INPUTS(1));

}  // namespace
}  // namespace tf_bn_ops
