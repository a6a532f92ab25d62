// Registers the CPU kernels of the ops that synchronised batch normalization
// consists of.

#include "cc/kernels/cpu_launch.h"

#define TFBN_KERNEL_DEVICE tensorflow::DEVICE_CPU
#define TFBN_KERNEL_BACKEND CpuBackend
#include "cc/kernels/split_registrations.h"
