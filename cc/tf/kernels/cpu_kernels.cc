// Registers the CPU kernels of all ops.

#include "cc/tf/kernels/cpu_launch.h"

#define TFBN_KERNEL_DEVICE tensorflow::DEVICE_CPU
#define TFBN_KERNEL_BACKEND CpuBackend
#include "cc/tf/kernels/registrations.h"
