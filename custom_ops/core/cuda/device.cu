// What is of a device and not of a step: its kernels' loading, the words of its errors.
#include "core/cuda/load.h"
#include "scalecom/scalecom_cuda.h"

extern "C" {

const char* scalecom_status_text_cuda(int32_t status) {
  if (status < SCALECOM_DEVICE_ERROR) return scalecom_status_text(status);
  return cudaGetErrorString(static_cast<cudaError_t>(status - SCALECOM_DEVICE_ERROR));
}

int32_t scalecom_kernels_load_cuda(int32_t* binary, int32_t* ptx) {
  cudaFuncAttributes attributes = {};
  for (const auto load : {scalecom::load_select, scalecom::load_exact, scalecom::load_finish}) {
    const int32_t status = load(&attributes);
    if (status != SCALECOM_OK) return status;
  }
  *binary = attributes.binaryVersion;
  *ptx = attributes.ptxVersion;
  return SCALECOM_OK;
}

}  // extern "C"
