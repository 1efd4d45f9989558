// The TensorFlow that the operations are built for: loading them into another may crash.
#include <string>  // whose header decides on the ABI

#include "tf/record.h"

#ifndef SCALECOM_TENSORFLOW
#error "expected -DSCALECOM_TENSORFLOW=VERSION: TensorFlow's headers do not say"
#endif

SCALECOM_RECORD(tensorflow, SCALECOM_TENSORFLOW)
SCALECOM_RECORD(cxx11_abi, _GLIBCXX_USE_CXX11_ABI)
