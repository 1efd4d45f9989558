/* The functions of scalecom.h on CUDA devices of compute capability 7.5 and above: the same
 * promises, the same results to the bit. The driver must know CUDA 12.1 or later: a list of tensors
 * is a large parameter of its kernel.
 *
 * The list of tensors is in host memory and is read before the function returns; the
 * pointers in it, `nonfinite`, `finite`, `flag`, `learning_rate` and `workspace` are device memory.
 * `stream` is a cudaStream_t. Work is queued on it and not waited for; errors of the work itself
 * surface at the caller's next synchronisation, those of a launch in its status, and CUDA forgets
 * them. A list is one launch for every 256 tensors; selection of chunks is one for each kind of
 * chunk in it (small, one kept, several kept), exact selection a fixed number.
 *
 * Gradient, residual, p and output are read and written 128 bits at a time (64 for 16-bit
 * types) where they are aligned to that, else element by element.
 */
#ifndef SCALECOM_SCALECOM_CUDA_H_
#define SCALECOM_SCALECOM_CUDA_H_

#include "scalecom/scalecom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* English for a status, of the device's errors CUDA's own; never null. */
SCALECOM_API const char* scalecom_status_text_cuda(int32_t status);

/* Loads all kernels on the current device. CUDA does that at a kernel's first launch, which may
 * wait for all that runs on the device: for ever, where that is a collective of which another
 * device's part comes later. Says what the device runs: machine code for compute capability
 * *binary, from the library or, where *ptx is another, compiled by the driver from PTX of that; 80
 * is 8.0. */
SCALECOM_API int32_t scalecom_kernels_load_cuda(int32_t* binary, int32_t* ptx);

SCALECOM_API int32_t scalecom_gradients_compensate_cuda(const scalecom_tensor* tensors,
                                                        int64_t count, int32_t gradient_type,
                                                        uint32_t* nonfinite, void* stream);

SCALECOM_API int64_t scalecom_offsets_workspace_cuda(const scalecom_tensor* tensors, int64_t count,
                                                     int32_t selection);
SCALECOM_API int32_t scalecom_offsets_select_cuda(const scalecom_tensor* tensors, int64_t count,
                                                  int32_t selection, int32_t gradient_type,
                                                  uint32_t* nonfinite, void* workspace,
                                                  int64_t workspace_bytes, void* stream);

SCALECOM_API int32_t scalecom_values_gather_cuda(const scalecom_tensor* tensors, int64_t count,
                                                 int32_t wire_type, float wire_limit, void* stream);

SCALECOM_API int32_t scalecom_flag_write_cuda(const uint32_t* nonfinite, int32_t wire_type,
                                              void* flag, void* stream);

SCALECOM_API int32_t scalecom_residuals_filter_cuda(const scalecom_tensor* tensors, int64_t count,
                                                    float beta, const uint8_t* finite,
                                                    void* stream);

SCALECOM_API int32_t scalecom_outputs_scatter_cuda(const scalecom_tensor* tensors, int64_t count,
                                                   int32_t gradient_type, int32_t wire_type,
                                                   void* stream);

SCALECOM_API int32_t scalecom_variables_descend_cuda(const scalecom_slices* slices, int64_t count,
                                                     const float* learning_rate, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SCALECOM_SCALECOM_CUDA_H_ */
