// Which shapes the split ops (split_op_specs.h) accept.

#ifndef TF_BN_OPS_CC_OPS_SPLIT_SHAPES_H_
#define TF_BN_OPS_CC_OPS_SPLIT_SHAPES_H_

#include <vector>

#include "absl/status/status.h"
#include "cc/core/formulas/batch_norm.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

struct SplitInput {
  const char* name;
  enum Kind { kView, kVector, kScalar } kind;  // The shape of x, [C] or [].
};

// The inputs of an op: single ones, then the tensors of a list, each of the
// shape of x.
struct SplitInputs {
  std::vector<SplitInput> single;
  const char* list_name;

  SplitInput At(int i) const {
    return i < static_cast<int>(single.size())
               ? single[i]
               : SplitInput{list_name, SplitInput::kView};
  }
};

// OK if `count` shapes fit together as far as they are known, with what is
// known of the shapes of x and of the vectors; or InvalidArgument in one
// sentence that names the tensor at fault and its shape. `axis` is the
// channels' dimension of x; from the end if negative.
absl::Status CheckSplitShapes(const SplitInputs& inputs, int axis,
                              const tensorflow::PartialTensorShape* shapes,
                              int count, tensorflow::PartialTensorShape* data,
                              tensorflow::PartialTensorShape* channels);

// The shapes of BatchNormGatherStats: counts [W], means and m2s [W, C].
absl::Status CheckGatherStatsShapes(
    const tensorflow::PartialTensorShape (&shapes)[3],
    tensorflow::PartialTensorShape* channels);

// InvalidArgument where nothing says what an activation behind a side input
// passed.
absl::Status CheckMaskSource(int ys, int side_inputs, Activation activation);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_SPLIT_SHAPES_H_
