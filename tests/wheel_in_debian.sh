#!/usr/bin/env bash
# Installs a wheel into a fresh Debian and trains the quickstart on two workers with its native kernels.
#
#     sudo tests/wheel_in_debian.sh trixie dist/tf_scalecom-*.whl tensorflow==2.21.0 [FOLDER]
#
# bookworm has Python 3.11, trixie 3.13. Needs root and debootstrap; FOLDER (default: a temporary one, removed at
# the end) keeps the root, with TensorFlow in it, for another run. No compiler is in it, nor these sources.
set -euo pipefail
suite=$1 wheel=$(realpath "$2") tensorflow=$3 root=${4:-}
docs=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../docs")

if [ -z "$root" ]; then
  root=$(mktemp --directory)
  trap 'rm --recursive --force --one-file-system "$root"' EXIT
fi
if [ ! -x "$root/venv/bin/pip" ]; then
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" >&2
  cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
  # The host's, which may know a proxy's.
  cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  chroot "$root" python3 -m venv /venv
fi
mkdir --parents "$root/train"
rm --force "$root"/train/*
cp "$wheel" "$root/train/"
sed --quiet '/^```python$/,/^```$/{/^```/d;p}' "$docs/index.md" >"$root/train/train.py"

# Mounts of a namespace of their own: they end with it.
unshare --mount --fork --kill-child bash -euc '
  mount --bind /proc "$1/proc"
  mount --bind /dev "$1/dev"
  exec chroot "$1" env --ignore-environment PATH=/venv/bin:/usr/bin:/bin HOME=/root TF_CPP_MIN_LOG_LEVEL=2 \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 TF_SCALECOM_BACKEND=native \
    timeout 1800 sh -euxc "
      cd /train
      ! command -v gcc
      python --version
      pip install --quiet --no-cache-dir \"$2\"
      pip install --quiet --no-cache-dir --force-reinstall --no-deps ./*.whl
      pip check
      python -m tf_scalecom.ops
      python -m tf_scalecom run -n 2 train.py
    "
' bash "$root" "$tensorflow"
