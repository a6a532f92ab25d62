// The rule for environment variables that switch something on.

#ifndef TF_BN_OPS_CC_CPU_ENVIRONMENT_H_
#define TF_BN_OPS_CC_CPU_ENVIRONMENT_H_

#include <strings.h>

#include <cstdlib>

namespace tf_bn_ops {

// Whether a variable is set to anything but 0 or false, in any case, and not
// empty; as tf_bn_ops/_startup.py reads TF_BN_OPS.
inline bool IsSwitchedOn(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && strcasecmp(value, "0") != 0 &&
         strcasecmp(value, "false") != 0;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ENVIRONMENT_H_
