// Registers a gradient for tensorflow::AddSymbolicGradients, once: TensorFlow
// ends a process in which a second copy of the client library does so again.

#ifndef TF_BN_OPS_CC_CLIENT_REGISTER_GRADIENT_H_
#define TF_BN_OPS_CC_CLIENT_REGISTER_GRADIENT_H_

#include "tensorflow/cc/framework/grad_op_registry.h"

namespace tf_bn_ops {

inline bool RegisterGradient(const char* op,
                             tensorflow::ops::GradFunc gradient) {
  auto* const registry = tensorflow::ops::GradOpRegistry::Global();
  tensorflow::ops::GradFunc registered;
  return registry->Lookup(op, &registered).ok() ||
         registry->Register(op, gradient);
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CLIENT_REGISTER_GRADIENT_H_
