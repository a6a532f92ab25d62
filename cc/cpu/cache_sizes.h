// Sizes of this machine's data caches. They steer scheduling and stores, never
// what is computed.

#ifndef TF_BN_OPS_CC_CPU_CACHE_SIZES_H_
#define TF_BN_OPS_CC_CPU_CACHE_SIZES_H_

#include <cstdint>

namespace tf_bn_ops {

struct CacheSizes {
  int64_t l2_bytes;   // Private to a core.
  int64_t llc_bytes;  // Last level, shared by all cores; capped, see the .cc.
};

// Read from the system once per process. Where it reports nothing: 512 KiB and
// 8 MiB.
const CacheSizes& MachineCacheSizes();

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_CACHE_SIZES_H_
