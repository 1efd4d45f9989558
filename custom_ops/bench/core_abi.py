"""What Python programs need of scalecom.h to call the core through ctypes."""

import ctypes

FLOAT32 = ctypes.c_int32(0)
CHUNK, EXACT = ctypes.c_int32(0), ctypes.c_int32(1)


class Tensor(ctypes.Structure):
    """scalecom_tensor."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("elements", "chunk_size", "chunk_keep", "tail_keep", "offset_bytes")
    ] + [
        (name, ctypes.c_void_p)
        for name in (
            "gradient",
            "residual",
            "compensated",
            "offsets",
            "values",
            "reduced",
            "output",
        )
    ]
