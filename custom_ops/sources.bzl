"""The sources of the native library and their flags, for Bazel's BUILD and for setup.py alike."""

CORE_CPU_SOURCES = [
    "core/cpu/api.cc",
    "core/cpu/dispatch.cc",
    "core/cpu/exact.cc",
    "core/cpu/kernels_avx2.cc",
    "core/cpu/kernels_avx512.cc",
    "core/cpu/kernels_portable.cc",
    "core/cpu/threads.cc",
]

CORE_CUDA_SOURCES = [
    "core/cuda/exact.cu",
    "core/cuda/finish.cu",
    "core/cuda/select.cu",
]

OPS_SOURCES = [
    "tf/built_for.cc",
    "tf/kernels_cpu.cc",
    "tf/ops.cc",
]

# Where there is nvcc: what g++ compiles of the operations on a GPU, and what nvcc does.
OPS_GPU_SOURCES = ["tf/kernels_gpu.cc"]

OPS_CUDA_SOURCES = ["tf/built_with.cu"]

# Of everything that g++ compiles; includes are relative to this folder.
COMMON_FLAGS = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread"]

# The core promises that products are not fused into sums.
CORE_FLAGS = ["-O3", "-ffp-contract=off"]

OPS_FLAGS = ["-O2"]

# For nvcc: one binary for 8.0 and 9.0, and PTX for what comes after. The core promises that
# subnormal numbers are zeros.
CUDA_FLAGS = [
    "-std=c++17",
    "-O3",
    "-ftz=true",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-pthread",
]

# The CUDA runtime goes into the library, which then loads where there is none. TensorFlow brings a
# runtime of its own, of another version, under the same names: ours is named before TensorFlow's
# libraries to the linker, and its symbols stay inside.
CUDA_RUNTIME = "libcudart_static.a"

CUDA_LINK_FLAGS = [
    "-ldl",
    "-lrt",
    "-Wl,--exclude-libs," + CUDA_RUNTIME,
]
