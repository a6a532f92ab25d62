// Reads the sizes of the caches from the system, once.

#include "cc/cpu/cache.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace tf_bn_ops {
namespace {

// Most that a process is taken to have of the last level. Some systems report
// hundreds of MiB that all cores of a socket, and all virtual machines on it,
// share: where 480 MiB were reported, stores around the cache were faster from
// 60 MiB on, and channels that were to stay in cache between two passes did
// not.
constexpr int64_t kMostLastLevelBytes = int64_t{32} << 20;

// Size of the first processor's cache of this level as the kernel reports it,
// the part that it can use; 0 if it does not say. (sysconf adds up what a
// whole socket has, of which one core reaches a fraction.)
int64_t FromSysfs(int level) {
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

int64_t CacheBytes(int level, int sysconf_name, int64_t otherwise) {
  const int64_t sysfs = FromSysfs(level);
  if (sysfs > 0) return sysfs;
  const int64_t total = sysconf(sysconf_name);
  return total > 0 ? std::min(total, otherwise) : otherwise;
}

}  // namespace

int64_t PrivateCacheBytes() {
  static const int64_t bytes =
      CacheBytes(2, _SC_LEVEL2_CACHE_SIZE, int64_t{512} << 10);
  return bytes;
}

int64_t LastLevelCacheBytes() {
  static const int64_t bytes = std::max(
      PrivateCacheBytes(),
      std::min(kMostLastLevelBytes,
               CacheBytes(3, _SC_LEVEL3_CACHE_SIZE, int64_t{8} << 20)));
  return bytes;
}

}  // namespace tf_bn_ops
