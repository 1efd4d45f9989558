// Exact selection, which takes several launches.
#ifndef SCALECOM_CORE_CUDA_SELECT_EXACT_H_
#define SCALECOM_CORE_CUDA_SELECT_EXACT_H_

#include "scalecom/scalecom.h"

namespace scalecom {
inline namespace cuda {

// Of valid layouts.
int64_t exact_workspace_bytes(const scalecom_tensor* tensors, int64_t count);

// As scalecom_offsets_select_cuda, which has checked its arguments but the layout of one chunk and
// the workspace.
int32_t select_exact(const scalecom_tensor* tensors, int64_t count, int32_t gradient_type,
                     uint32_t* nonfinite, void* workspace, int64_t workspace_bytes, void* stream);

}  // namespace cuda
}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_SELECT_EXACT_H_
