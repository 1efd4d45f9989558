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
    "core/cuda/device.cu",
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

# Compute capabilities that GPU kernels are machine code for (which later ones of the same generation
# run, too), and that they are PTX for, which the driver compiles for all later ones.
CUDA_BINARIES = ["80", "90"]

CUDA_PTX = ["75", "90"]

# For nvcc. The core promises that subnormal numbers are zeros.
CUDA_FLAGS = [
    "-std=c++17",
    "-O3",
    "-ftz=true",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-pthread",
    "-DSCALECOM_CUDA_BINARIES=" + "+".join(CUDA_BINARIES),
    "-DSCALECOM_CUDA_PTX=" + "+".join(CUDA_PTX),
] + [
    "-gencode=arch=compute_%s,code=sm_%s" % (arch, arch)
    for arch in CUDA_BINARIES
] + [
    "-gencode=arch=compute_%s,code=compute_%s" % (arch, arch)
    for arch in CUDA_PTX
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
