// The name that joins cpu_custom_call.h, which writes the call, and
// cpu_custom_call_handler.cc, which executes it. Includes nothing of XLA, whose
// headers take most of a minute to compile.

#ifndef TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_TARGET_H_
#define TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_TARGET_H_

namespace tf_bn_ops {

constexpr char kCpuCustomCallTarget[] = "tf_bn_ops.batch_norm_grad";

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_CPU_CUSTOM_CALL_TARGET_H_
