// Sizes of this machine's caches. They steer how work is ordered, never what is
// computed.

#ifndef TF_BN_OPS_CC_CPU_CACHE_H_
#define TF_BN_OPS_CC_CPU_CACHE_H_

#include <cstdint>

namespace tf_bn_ops {

// Largest cache level, shared by all cores: what of it one process may count on
// (8 MiB when the system does not say).
int64_t LastLevelCacheBytes();

// The cache that each core has to itself, level 2 (512 KiB when the system does
// not say).
int64_t PrivateCacheBytes();

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_CACHE_H_
