// What cpu_call.h, which writes the call, and cpu_handler.cc, which answers it,
// agree on. Includes nothing of XLA: its headers take most of a minute.

#ifndef TF_BN_OPS_CC_XLA_CPU_CALL_TARGET_H_
#define TF_BN_OPS_CC_XLA_CPU_CALL_TARGET_H_

namespace tf_bn_ops {

// The name under which the function is registered.
constexpr char kCpuCallTarget[] = "tf_bn_ops.batch_norm_grad";

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_CPU_CALL_TARGET_H_
