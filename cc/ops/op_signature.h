// What shape inference and the kernels know of an op's arguments: names, kinds
// and where the channels are. generated/op_signatures.h has those of all ops.

#ifndef TF_BN_OPS_CC_OPS_OP_SIGNATURE_H_
#define TF_BN_OPS_CC_OPS_OP_SIGNATURE_H_

#include <algorithm>

namespace tf_bn_ops {

// The shape of x; the same, of each tensor of a list; [channels]; [].
enum class ArgKind { kView, kViewList, kVector, kScalar };

struct OpSignature {
  struct Arg {
    const char* name;
    ArgKind kind;
  };
  // What says which dimension of x the channels are: an attr, or nothing, and
  // they are dimension 1.
  enum Layout { kAxis, kDataFormat, kChannelsFirst };

  Layout layout;
  int min_channels;
  int x;  // The input that is x.
  int num_inputs, num_outputs;
  Arg inputs[10];
  ArgKind outputs[6];

  // Tensor i of a call: a list comes last.
  const Arg& Input(int i) const { return inputs[std::min(i, num_inputs - 1)]; }
  ArgKind Output(int i) const { return outputs[std::min(i, num_outputs - 1)]; }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_OP_SIGNATURE_H_
