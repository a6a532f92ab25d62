// Marks of functions that are compiled for GPUs, by nvcc, and, as plain C++,
// for the host.

#ifndef TF_BN_OPS_CC_CORE_HOST_DEVICE_H_
#define TF_BN_OPS_CC_CORE_HOST_DEVICE_H_

// Always inlined: translation units with different -m flags include such
// functions, and of an out-of-line copy the linker would keep one for all, with
// instructions that the processor may lack. A build for one machine alone may
// define it as `inline`, which compiles faster.
#ifndef TFBN_INLINE
#define TFBN_INLINE inline __attribute__((always_inline))
#endif

#if defined(__CUDACC__)
#define TFBN_HD __host__ __device__ __forceinline__
#define TFBN_UNROLL _Pragma("unroll")
#define TFBN_NO_UNROLL _Pragma("unroll 1")
#else
#define TFBN_HD TFBN_INLINE
#define TFBN_UNROLL
#define TFBN_NO_UNROLL
#endif

#endif  // TF_BN_OPS_CC_CORE_HOST_DEVICE_H_
