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

#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {

// Whatever is wrong with a block or its pins is in the Status of the call that
// finds it. It does not touch the status of the scope, so a block can be
// corrected and run again. Not thread-safe.
class TF_BN_OPS_EXPORT BatchNormGradBlock {
 public:
  // `scope`: its device and the like are the block's, and an Output of its
  //   graph may be an input.
  // `op`: a registered name: of this library (which LoadOpLibrary() loads if it
  //   is not yet), as in "TfBnOps>FusedBatchNormGradV3", or TensorFlow's own.
  // `attributes`: `name=value` of the op's attributes except types and lengths
  //   of lists, which follow from the pins, separated by semicolons; names with
  //   or without an underscore at the end, as in
  //   "epsilon_=0.001;data_format_=NCHW;is_training_=true". What is left out
  //   has the op's default; BatchNormTrainingBackprop's epsilon has none.
  BatchNormGradBlock(const tensorflow::Scope& scope, const std::string& op,
                     const std::string& attributes = "");

  // What the constructor found: NotFound (no such op, no op library) or
  // InvalidArgument (attributes). All other calls return it if it is not OK.
  const absl::Status& status() const { return status_; }

  // Names of the pins and outputs, in the order of the op.
  const std::vector<std::string>& input_names() const { return inputs_; }
  const std::vector<std::string>& output_names() const { return outputs_; }

  // Sets a pin: to a tensor, or to an Output of the scope's graph. It stays
  // set until it is set again. The pin side_input alone may stay unset.
  absl::Status SetInput(const std::string& name,
                        const tensorflow::Tensor& tensor);
  absl::Status SetInput(const std::string& name,
                        const tensorflow::Output& output);

  // Computes the outputs from the pins and appends one tensor to each output's
  // results. InvalidArgument: pins that are missing or do not fit together;
  // other errors are the session's.
  absl::Status Run();

  // The results of an output, one per successful Run() since the block was made
  // or ClearResults(). Empty for a name that is no output.
  const std::vector<tensorflow::Tensor>& result(const std::string& name) const;
  void ClearResults() { results_.clear(); }

 private:
  // The value of an input: an output of the graph, or else a tensor.
  struct Pin {
    tensorflow::Tensor tensor;
    tensorflow::Output output;
    tensorflow::DataType type() const {
      return output.node() != nullptr ? output.type() : tensor.dtype();
    }
  };

  absl::Status Init(const std::string& op, const std::string& attributes);
  absl::Status Set(const std::string& name, const Pin& pin);
  absl::Status MakeSession();

  const tensorflow::Scope scope_;
  const std::string name_;  // Of the node, in the graph that is run.
  const tensorflow::OpDef* op_ = nullptr;
  absl::Status status_;
  std::vector<std::string> inputs_, outputs_;
  std::map<std::string, tensorflow::AttrValue> attributes_;
  std::map<std::string, Pin> pins_;
  std::map<std::string, std::vector<tensorflow::Tensor>> results_;
  // nullptr: a pin that is set has another type or source than before.
  std::unique_ptr<tensorflow::Session> session_;
};

}  // namespace tf_bn_ops
