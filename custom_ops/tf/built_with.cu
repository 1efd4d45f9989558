// The CUDA toolkit that the GPU kernels are built with, and the GPUs that they are built for.
#include "tf/record.h"

SCALECOM_RECORD(cuda, __CUDACC_VER_MAJOR__.__CUDACC_VER_MINOR__)
SCALECOM_RECORD(cuda_binaries, SCALECOM_CUDA_BINARIES)
SCALECOM_RECORD(cuda_ptx, SCALECOM_CUDA_PTX)
