"""`python -m tf_scalecom.ops`: says which kernels are in use, and why."""

from tf_scalecom.ops import backend

if __name__ == "__main__":
    kernels, reason = backend()
    print(f"{kernels.name}: {reason}")
