// dladdr and dlopen moved from libdl to libc in glibc 2.34; under their first
// version every glibc has them. See older_libstdcxx.cc.

#ifdef __x86_64__
#define TFBN_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define TFBN_FIRST_GLIBC "GLIBC_2.17"
#endif

#define TFBN_HIDDEN __attribute__((visibility("hidden")))

asm(".symver tfbn_dladdr,dladdr@" TFBN_FIRST_GLIBC);
asm(".symver tfbn_dlopen,dlopen@" TFBN_FIRST_GLIBC);

extern "C" {
int tfbn_dladdr(const void* address, void* info);
TFBN_HIDDEN int dladdr(const void* address, void* info) {
  return tfbn_dladdr(address, info);
}

void* tfbn_dlopen(const char* file, int mode);
TFBN_HIDDEN void* dlopen(const char* file, int mode) {
  return tfbn_dlopen(file, mode);
}
}
