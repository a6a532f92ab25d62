// Marks of functions that run on the device and, as plain C++, on the host.

#ifndef TF_BN_OPS_CC_CORE_HOST_DEVICE_H_
#define TF_BN_OPS_CC_CORE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define TFBN_HD __host__ __device__ __forceinline__
#define TFBN_UNROLL _Pragma("unroll")
#define TFBN_UNROLL_4 _Pragma("unroll 4")
#else
#define TFBN_HD inline
#define TFBN_UNROLL
#define TFBN_UNROLL_4
#endif

#endif  // TF_BN_OPS_CC_CORE_HOST_DEVICE_H_
