// Loading a part's kernels on the current device; see scalecom_kernels_load_cuda.
#ifndef SCALECOM_CORE_CUDA_LOAD_H_
#define SCALECOM_CORE_CUDA_LOAD_H_

#include <cuda_runtime.h>
#include <stdint.h>

namespace scalecom {
inline namespace cuda {

// Each returns a status, and leaves the attributes of one of its kernels.
int32_t load_exact(cudaFuncAttributes* attributes);
int32_t load_finish(cudaFuncAttributes* attributes);
int32_t load_select(cudaFuncAttributes* attributes);

}  // namespace cuda
}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_LOAD_H_
