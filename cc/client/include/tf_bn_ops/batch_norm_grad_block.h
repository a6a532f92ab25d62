// One batch-normalization op, forward or gradient, as a block: an op name, an
// attribute string, a tensor per input pin, Run(), a vector of tensors per
// output. The blocks of enuSpace for TensorFlow are used in this way.
//
//   tf_bn_ops::BatchNormGradBlock block(
//       scope, "TfBnOps>FusedBatchNormGrad",
//       "epsilon_=0.001;data_format_=NCHW;is_training_=true");
//   status = block.SetInput("x", x);  // and the other pins
//   status = block.Run();
//   const std::vector<tensorflow::Tensor>& dx = block.result("x_backprop");

#ifndef TF_BN_OPS_BATCH_NORM_GRAD_BLOCK_H_
#define TF_BN_OPS_BATCH_NORM_GRAD_BLOCK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {

// Whatever is wrong with a block or its pins is said in one sentence, in the
// Status of the call that finds it. It does not touch the status of the scope,
// so a block can be corrected and run again. Not thread-safe.
class TF_BN_OPS_EXPORT BatchNormGradBlock {
 public:
  // `scope`: the graph to which the block is added; an Output of the same graph
  //   may be an input. The block keeps a scope below it.
  // `op`: a registered name: "TfBnOps>FusedBatchNorm", ...V2, ...V3, ...Ex,
  //   "TfBnOps>FusedBatchNormGrad", ...V2, ...V3 or
  //   "TfBnOps>BatchNormTrainingBackprop" (the op library is loaded by
  //   LoadOpLibrary() if it is not yet), or TensorFlow's own "FusedBatchNorm",
  //   "FusedBatchNormGrad", ...V2, ...V3.
  // `attributes`: `name=value` of the op's attributes except types and the
  //   number of side inputs, which follow from the pins, separated by
  //   semicolons; names with or without an underscore at the end, as in
  //   "epsilon_=0.001;data_format_=NCHW;is_training_=true". What is left out
  //   has the op's default; BatchNormTrainingBackprop's epsilon has none.
  BatchNormGradBlock(const tensorflow::Scope& scope, const std::string& op,
                     const std::string& attributes = "");
  ~BatchNormGradBlock();
  BatchNormGradBlock(const BatchNormGradBlock&) = delete;
  BatchNormGradBlock& operator=(const BatchNormGradBlock&) = delete;

  // What the constructor found: NotFound (no such op, no op library) or
  // InvalidArgument (attributes). All other calls return it if it is not OK.
  const absl::Status& status() const;

  // Names of the pins and outputs, in the order of the op.
  const std::vector<std::string>& input_names() const;
  const std::vector<std::string>& output_names() const;

  // Sets a pin: to a tensor, or to an Output of the scope's graph. It stays
  // set until it is set again. The pin side_input alone may stay unset.
  // InvalidArgument: no such pin, or a type that the op does not take there.
  absl::Status SetInput(const std::string& name,
                        const tensorflow::Tensor& tensor);
  absl::Status SetInput(const std::string& name,
                        const tensorflow::Output& output);

  // Computes the outputs from the pins and appends one tensor to each output's
  // results. InvalidArgument: pins that are missing or do not fit together;
  // other errors are those of the session.
  absl::Status Run();

  // The results of an output, one per successful Run() since the block was made
  // or ClearResults(). Empty for a name that is no output.
  const std::vector<tensorflow::Tensor>& result(const std::string& name) const;
  void ClearResults();

 private:
  class __attribute__((visibility("hidden"))) Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_BATCH_NORM_GRAD_BLOCK_H_
