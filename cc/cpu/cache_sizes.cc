// Reads the cache sizes from sysfs, else from sysconf; where neither reports
// them, they are 512 KiB and 8 MiB.

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "cc/cpu/plan.h"

namespace tf_bn_ops {
namespace {

// Cap on the LLC size that the plan counts on. Some systems report hundreds of
// MiB that all cores of a socket, and all virtual machines on it, share: where
// 480 MiB were reported, non-temporal stores were faster from 60 MiB of tensors
// on, and channel groups sized for the whole LLC were evicted between the two
// passes.
constexpr int64_t kMaxLlcBytes = int64_t{32} << 20;

// Size of cpu0's data cache of this level in sysfs: what one core can use. 0 if
// there is no such entry. (sysconf reports the total of a socket, of which one
// core reaches a fraction.)
int64_t SysfsBytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    int found = 0;
    std::string type, size;
    std::ifstream(folder + "/level") >> found;
    std::ifstream(folder + "/type") >> type;
    std::ifstream(folder + "/size") >> size;  // Such as 1024K.
    if (found != level || type == "Instruction" || size.empty()) continue;
    int64_t bytes = 0;
    for (char c : size) {
      if (c >= '0' && c <= '9') bytes = 10 * bytes + (c - '0');
      if (c == 'K') bytes <<= 10;
      if (c == 'M') bytes <<= 20;
    }
    return bytes;
  }
  return 0;
}

int64_t CacheBytes(int level, int sysconf_name, int64_t fallback) {
  const int64_t sysfs = SysfsBytes(level);
  if (sysfs > 0) return sysfs;
  const int64_t total = sysconf(sysconf_name);
  return total > 0 ? std::min(total, fallback) : fallback;
}

}  // namespace

const CacheSizes& MachineCacheSizes() {
  static const CacheSizes sizes = [] {
    const int64_t l2 = CacheBytes(2, _SC_LEVEL2_CACHE_SIZE, int64_t{512} << 10);
    const int64_t llc = CacheBytes(3, _SC_LEVEL3_CACHE_SIZE, int64_t{8} << 20);
    return CacheSizes{l2, std::max(l2, std::min(kMaxLlcBytes, llc))};
  }();
  return sizes;
}

}  // namespace tf_bn_ops
