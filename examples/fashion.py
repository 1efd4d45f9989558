"""What the examples train on: 12,000 photos of clothing, 28 x 28. Put your own data here."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "models"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "models" / "image"))

import image_data


def load():
    """Returns (training images, labels), (test images, labels): float32 and int32 arrays."""
    data = image_data.load(Path(__file__).resolve().parent.parent / "data")
    scale = np.float32(1 / 255)
    return (
        (data.train_images[:12_000, ..., None] * scale, data.train_labels[:12_000].astype("int32")),
        (data.test_images[:2_000, ..., None] * scale, data.test_labels[:2_000].astype("int32")),
    )
