#!/usr/bin/env bash
# Builds the core with a C++ compiler (and nvcc where there is one and a GPU), checks it
# against the reference, and prints the tables. Needs no TensorFlow.
#
#   bench/run.sh [cpu|cuda|all]     environment: STRIDE=5 runs every fifth case of the sweep
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:-all}
stride=${STRIDE:-1}
export BUILD=${BUILD:-build}
jobs=$(nproc)

if [[ $part != cuda ]]; then
  make -s -j"$jobs" test bench STRIDE="$stride"
  echo; grep -m1 'model name' /proc/cpuinfo || true
  "$BUILD"/bench_cpu
fi
if [[ $part != cpu ]]; then
  if ! command -v nvcc >/dev/null; then
    echo "GPU part skipped: no nvcc"
  elif ! nvidia-smi -L >/dev/null 2>&1; then
    make -s -j"$jobs" cuda
    echo "GPU part built, not run: no GPU"
  else
    make -s -j"$jobs" cuda
    "$BUILD"/sweep_cuda "$stride"
    "$BUILD"/large_cuda
    "$BUILD"/bench_cuda
    if python3 -c 'import torch' 2>/dev/null; then
      python3 bench/compare.py "$BUILD"/libscalecom_cuda.so torch-gpu --elements 100000000
    fi
  fi
fi
