// Marks of functions: those that are compiled for GPUs, by nvcc, and, as plain
// C++, for the host; and those that other libraries call.

#pragma once

#include "cc/core/generated/layout.h"

// Always inlined: translation units with different -m flags include such
// functions, and of an out-of-line copy the linker would keep one for all, with
// instructions that the processor may lack. A build for one machine alone may
// define it as `inline`, which compiles faster.
#ifndef TFBN_INLINE
#define TFBN_INLINE inline __attribute__((always_inline))
#endif

// A function of libtf_bn_ops_core.so that the libraries for TensorFlow call.
// The kernels, nine tenths of all code, are then in one library, the same for
// every TensorFlow. Its symbol has the version of the package, which the build
// says, and the layout of a call, since all builds between two versions have
// one version: C++ types are passed, and the dynamic loader refuses a library
// of another one.
#ifndef TFBN_VERSION
#define TFBN_VERSION 0
#endif
#define TFBN_QUOTE_(text) #text
#define TFBN_QUOTE(text) TFBN_QUOTE_(text)
#define TFBN_BUILD TFBN_QUOTE(TFBN_VERSION) "_" TFBN_QUOTE(TFBN_LAYOUT)
#define TFBN_SHARED(name) \
  asm("tfbn_" name "_" TFBN_BUILD) __attribute__((visibility("default")))

#if defined(__CUDACC__)
#define TFBN_HD __host__ __device__ __forceinline__
#define TFBN_UNROLL _Pragma("unroll")
#define TFBN_NO_UNROLL _Pragma("unroll 1")
#else
#define TFBN_HD TFBN_INLINE
#define TFBN_UNROLL
#define TFBN_NO_UNROLL
#endif
