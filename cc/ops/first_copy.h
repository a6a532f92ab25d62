// A second copy of libtf_bn_ops.so in a process, beside a model for instance,
// registers nothing: TensorFlow would find two kernels for every op, and no
// call of any of them would run any more.

#ifndef TF_BN_OPS_CC_OPS_FIRST_COPY_H_
#define TF_BN_OPS_CC_OPS_FIRST_COPY_H_

namespace tf_bn_ops {

// Whether the ops have no kernels from another copy; to be asked before this
// copy's own are registered. Logs a sentence if they have.
bool IsFirstCopy();

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FIRST_COPY_H_
