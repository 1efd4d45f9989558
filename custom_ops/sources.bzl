"""The sources of the native library, for Bazel's BUILD and for setup.py alike."""

CORE_CPU_SOURCES = [
    "core/cpu/api.cc",
    "core/cpu/dispatch.cc",
    "core/cpu/exact.cc",
    "core/cpu/kernels_avx2.cc",
    "core/cpu/kernels_avx512.cc",
    "core/cpu/kernels_portable.cc",
    "core/cpu/threads.cc",
]

OPS_SOURCES = [
    "tf/ops.cc",
    "tf/kernels.cc",
]

# The core promises that products are not fused into sums.
CORE_FLAGS = ["-O3", "-ffp-contract=off"]
