// What a compiler's headers need of the libstdc++ and glibc of the machine that
// builds, made of older symbols. The files of this folder are in an archive, of
// which a library takes what it refers to, so that it loads with glibc 2.17 and
// the libstdc++ of GCC 6. tests/building/test_security.py holds that.

#include <condition_variable>  // NOLINT: of the symbol that is replaced
#include <exception>
#include <ios>
#include <mutex>  // NOLINT
#include <new>
#include <sstream>

#define TFBN_HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32: whether reference counts may be changed without atomic
// operations. Below TensorFlow they never may.
extern "C" {
TFBN_HIDDEN char __libc_single_threaded = 0;
}

// glibc 2.38: reads binary numbers as well, which nobody writes here.
extern "C" long StrToL(const char*, char**, int) asm("strtol");  // NOLINT
extern "C" TFBN_HIDDEN long __isoc23_strtol(                     // NOLINT
    const char* text, char** end, int base) {
  return StrToL(text, end, base);
}

// GCC 14: what ends a noexcept function that throws.
extern "C" TFBN_HIDDEN void __cxa_call_terminate(void*) { std::terminate(); }

// GCC 13: <iostream> asks for std::cout to be there before it is used.
TFBN_HIDDEN void InitStreams() asm("_ZSt21ios_base_library_initv");
void InitStreams() { static std::ios_base::Init init; }

// GCC 12: the same function, since then noexcept.
asm(".symver tfbn_wait,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
extern "C" void tfbn_wait(std::condition_variable* self,
                          std::unique_lock<std::mutex>* lock);
TFBN_HIDDEN void
Wait(std::condition_variable* self, std::unique_lock<std::mutex>* lock) asm(
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void Wait(std::condition_variable* self, std::unique_lock<std::mutex>* lock) {
  tfbn_wait(self, lock);
}

// GCC 11.
TFBN_HIDDEN void ThrowBadArrayNewLength() asm(
    "_ZSt28__throw_bad_array_new_lengthv");
void ThrowBadArrayNewLength() { throw std::bad_array_new_length(); }

// GCC 9: the constructor without an argument.
TFBN_HIDDEN void MakeStringStream(void* self) asm(
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void MakeStringStream(void* self) {
  new (self) std::stringstream(std::ios_base::in | std::ios_base::out);
}
