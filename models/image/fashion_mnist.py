"""Fashion-MNIST from Debian's `dataset-fashion-mnist` package (MIT licence, Zalando SE).

60,000 training and 10,000 test images of clothing, 28 x 28 grey values, ten classes.
"""

import gzip
import hashlib
import pathlib

import numpy as np
import package_files

PACKAGE = "dataset-fashion-mnist"
FOLDER = pathlib.PurePosixPath("usr/share/datasets/fashion-mnist")

# SHA-256 and shape of each array. The archive has had one release; another one must be looked at
# before accuracies are compared with it.
FILES = {
    "train-images-idx3-ubyte.gz": (
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        (60_000, 28, 28),
    ),
    "train-labels-idx1-ubyte.gz": (
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        (60_000,),
    ),
    "t10k-images-idx3-ubyte.gz": (
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        (10_000, 28, 28),
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
        (10_000,),
    ),
}


def load(data_dir: pathlib.Path, system_root: pathlib.Path = pathlib.Path("/")):
    """Returns (train images, train labels, test images, test labels), all uint8.

    Takes the files from the installed package, else from `data_dir`, where the package is unpacked
    when it is not there yet (30 MB, once).

    Raises:
        package_files.PackageUnavailableError: the package is neither here nor to be had.
        ValueError: a file is not the released one.
    """
    unpacked = data_dir / PACKAGE
    if (system_root / FOLDER).is_dir():
        folder = system_root / FOLDER
    else:
        folder = unpacked / FOLDER
        if not folder.is_dir():
            package_files.unpack_debian_package(PACKAGE, unpacked)
    return tuple(read_idx(folder / name, *expected) for name, expected in FILES.items())


def read_idx(path: pathlib.Path, sha256: str, shape: tuple[int, ...]) -> np.ndarray:
    """Reads a gzipped IDX file of bytes whose digest and shape are known.

    IDX: two zero bytes, a type byte (8: uint8), the rank, big-endian int32 dimensions, the data.
    """
    compressed = path.read_bytes()
    digest = hashlib.sha256(compressed).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"Expected {path} to have SHA-256 {sha256}; received {digest} "
            f"({len(compressed)} bytes). Remove its folder and run again to fetch it anew."
        )
    header_size = 4 + 4 * len(shape)
    return np.frombuffer(gzip.decompress(compressed), np.uint8, offset=header_size).reshape(shape)
