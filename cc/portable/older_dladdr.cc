// dladdr moved from libdl to libc in glibc 2.34; under its first version every
// glibc has it. See older_libstdcxx.cc.

#ifdef __x86_64__
#define TFBN_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define TFBN_FIRST_GLIBC "GLIBC_2.17"
#endif

asm(".symver tfbn_dladdr,dladdr@" TFBN_FIRST_GLIBC);
extern "C" int tfbn_dladdr(const void* address, void* info);
extern "C" __attribute__((visibility("hidden"))) int dladdr(const void* address,
                                                            void* info) {
  return tfbn_dladdr(address, info);
}
