// Linked into programs: the start-up code of the machine that builds calls
// glibc 2.34's __libc_start_main. This one calls the first, which every glibc
// has, and which before 2.34 left static initializers to the program.

#ifdef __x86_64__
#define TFBN_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define TFBN_FIRST_GLIBC "GLIBC_2.17"
#endif

using Main = int (*)(int, char**, char**);
using Initializer = void (*)(int, char**, char**);

extern "C" {
extern Initializer __init_array_start[] __attribute__((visibility("hidden")));
extern Initializer __init_array_end[] __attribute__((visibility("hidden")));

asm(".symver tfbn_start_main,__libc_start_main@" TFBN_FIRST_GLIBC);
int tfbn_start_main(Main main, int argc, char** argv, Initializer initialize,
                    void (*finish)(), void (*finish_loader)(), void* stack);

static void Initialize(int argc, char** argv, char** environment) {
  for (Initializer* one = __init_array_start; one != __init_array_end; ++one) {
    (*one)(argc, argv, environment);
  }
}

__attribute__((visibility("hidden"))) int __libc_start_main(
    Main main, int argc, char** argv, Initializer, void (*finish)(),
    void (*finish_loader)(), void* stack) {
  return tfbn_start_main(main, argc, argv, &Initialize, finish, finish_loader,
                         stack);
}
}
