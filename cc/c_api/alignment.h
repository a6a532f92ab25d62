// Checks that the arrays of a call begin at an element: loads and non-temporal
// stores of whole vectors fault on others, on CPUs and GPUs.

#ifndef TF_BN_OPS_CC_C_API_ALIGNMENT_H_
#define TF_BN_OPS_CC_C_API_ALIGNMENT_H_

#include <string>

#include "cc/core/call.h"
#include "cc/core/gather_stats.h"

namespace tf_bn_ops {
namespace c_api {

// One sentence, or empty where every array that is given is aligned to its
// element type.
std::string CheckAlignment(const Call& call);
std::string CheckAlignment(const GatherStatsArgs& args);

}  // namespace c_api
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_C_API_ALIGNMENT_H_
