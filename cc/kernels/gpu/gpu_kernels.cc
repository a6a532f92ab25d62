// Registers the GPU kernels of all ops.

#include "cc/kernels/gpu/gpu_launch.h"

#define TFBN_KERNEL_DEVICE tensorflow::DEVICE_GPU
#define TFBN_KERNEL_BACKEND GpuBackend
#include "cc/kernels/registrations.h"
