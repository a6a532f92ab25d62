// Registers the CPU kernels of the fused ops.

#include "cc/kernels/cpu_launch.h"

#define TFBN_KERNEL_DEVICE tensorflow::DEVICE_CPU
#define TFBN_KERNEL_BACKEND CpuBackend
#include "cc/kernels/fused_registrations.h"
