// Marks of functions that are compiled for GPUs, by nvcc or hipcc, and, as plain
// C++, for the host.

#ifndef TF_BN_OPS_CC_CORE_HOST_DEVICE_H_
#define TF_BN_OPS_CC_CORE_HOST_DEVICE_H_

// Always inlined: translation units with different -m flags include such
// functions, and of an out-of-line copy the linker would keep one for all, with
// instructions that the processor may lack.
#define TFBN_INLINE inline __attribute__((always_inline))

#if defined(__CUDACC__)
#define TFBN_HD __host__ __device__ __forceinline__
#elif defined(__HIPCC__)
#define TFBN_HD __attribute__((host)) __attribute__((device)) TFBN_INLINE
#else
#define TFBN_HD TFBN_INLINE
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TFBN_UNROLL _Pragma("unroll")
#define TFBN_NO_UNROLL _Pragma("unroll 1")
#else
#define TFBN_UNROLL
#define TFBN_NO_UNROLL
#endif

// In device code, hipcc knows its own alone.
#if defined(__HIPCC__)
#define TFBN_MEMCPY __builtin_memcpy
#else
#define TFBN_MEMCPY std::memcpy
#endif

#endif  // TF_BN_OPS_CC_CORE_HOST_DEVICE_H_
