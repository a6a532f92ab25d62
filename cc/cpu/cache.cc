#include "cc/cpu/cache.h"

#include <unistd.h>

namespace tf_bn_ops {
namespace {

int64_t Configured(int name, int64_t otherwise) {
  const long value = sysconf(name);
  return value > 0 ? value : otherwise;
}

}  // namespace

int64_t PrivateCacheBytes() {
  static const int64_t bytes =
      Configured(_SC_LEVEL2_CACHE_SIZE, int64_t{512} << 10);
  return bytes;
}

int64_t LastLevelCacheBytes() {
  static const int64_t bytes = [] {
    const int64_t level3 = Configured(_SC_LEVEL3_CACHE_SIZE, int64_t{8} << 20);
    return level3 > PrivateCacheBytes() ? level3 : PrivateCacheBytes();
  }();
  return bytes;
}

}  // namespace tf_bn_ops
