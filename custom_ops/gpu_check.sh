#!/usr/bin/env bash
# The first look at the CUDA kernels on a GPU: right, and how fast? For a machine with a GPU and its driver and
# nothing else. `make gpu_check` packs this script and its programs into one file; there:
#
#   tar -xzf gpu_check.tar.gz && gpu_check/gpu_check.sh
#
# It ends within eight minutes and leaves gpu_check.md, one text for this folder's README.md. Exit code: 0, all is
# right; 1, something is wrong, or took too long; 77, the programs cannot run here.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

refuse() {
  echo "gpu_check.sh: $*" >&2
  exit 77
}

[ "$(uname -sm)" = "Linux x86_64" ] || refuse "expected Linux on x86_64; received $(uname -sm)"
# The C library comes along with its loader, so that this machine's may be older.
program=(lib/ld-linux-x86-64.so.2 --library-path "lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
device=$(timeout 120 "${program[@]}" ./device_cuda)
case $? in
  0) ;;
  124) refuse "expected kernels to load within two minutes; received nothing: look at nvidia-smi" ;;
  *) refuse "${device:-expected a program that runs; received the above}" ;;
esac

report=gpu_check.md
status=0
run() { # run SECONDS WHAT COMMAND...: its output, or what is wrong with it
  local seconds=$1 what=$2 begun=$SECONDS output code
  shift 2
  output=$(timeout "$seconds" "${program[@]}" "$@" 2>&1)
  code=$?
  case $code in
    0) ;;
    77) what="$what: not run" ;;
    124) what="$what: **no end within $seconds s**" status=1 ;;
    *) what="$what: **failed**, exit code $code" status=1 ;;
  esac
  printf '%s (%d s):\n\n%s\n\n' "$what" $((SECONDS - begun)) "$output"
}

{
  printf '### %s\n\n%s\n\n' "${device%%,*}" "$device"
  nvidia-smi --query-gpu=driver_version,clocks.max.memory,clocks.max.sm,power.limit,ecc.mode.current \
    --format=csv 2>/dev/null | sed 's/^/    /'
  echo
} >"$report"
# Apart from the pipe: a function in a pipe could not set the status.
run 140 "Against the reference, to the bit" ./sweep_cuda "${STRIDE:-7}" >>"$report"
run 60 "A tensor of over 2^31 elements" ./large_cuda >>"$report"
run 150 "Speed" ./bench_cuda >>"$report"
cat "$report"
exit $status
