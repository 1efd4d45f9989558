"""What the scripts train on: photos of clothing, and paragraphs of Python's own manual."""

import functools
import sys
from pathlib import Path
from pydoc_data.topics import topics

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import fashion


@functools.cache
def _clothing():
    return fashion.load()


def clothing(samples):
    """Returns the first `samples` training images, 28 x 28 x 1 from 0 to 1, and their labels."""
    (images, labels), _ = _clothing()
    return images[:samples].copy(), labels[:samples].copy()


def paragraphs(*names):
    """Returns the paragraphs of over 8 words of some topics, and the place of each one's topic."""
    found = [
        (" ".join(paragraph.split()), place)
        for place, name in enumerate(names)
        for paragraph in topics[name].split("\n\n")
        if len(paragraph.split()) > 8
    ]
    texts, places = zip(*found, strict=True)
    return list(texts), list(places)
