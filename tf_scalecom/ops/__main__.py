"""`python -m tf_scalecom.ops`: says which kernels are in use and why, and what there is."""

from tf_scalecom.ops import backend, built, native

if __name__ == "__main__":
    kernels, reason = backend()
    print(f"{kernels.name}: {reason}")
    if native.LIBRARY.exists():
        print(f"{native.LIBRARY.name}: {built.read(native.LIBRARY)}")
