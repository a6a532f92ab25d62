// Registers the GPU kernels of the ops that synchronised batch normalization
// consists of.

#include "cc/kernels/gpu/gpu_launch.h"

#define TFBN_KERNEL_DEVICE tensorflow::DEVICE_GPU
#define TFBN_KERNEL_BACKEND GpuBackend
#include "cc/kernels/split_registrations.h"
