"""What models/hyperparameters.md says: its commands, and the ratios in its headings."""

import math
import pathlib
import re

from tf_scalecom.wire.config import CompressionConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / "models" / "hyperparameters.md").read_text()
COMMANDS = re.findall(
    r"python -m tf_scalecom run (?:[^\n]*\\\n)*[^\n]*", PAGE.split("## Measured here")[0]
)


def stated_ratios(title: str) -> list[int]:
    """The "here" of the headings that begin so, standard batch before large batch."""
    return [int(x) for x in re.findall(rf"^### {title}:.* \(here (\d+)x\)", PAGE, re.MULTILINE)]


def ratio_of(variables, compression_ratio: float | str) -> float:
    """Elements over elements sent of a network, with the selection of the page's commands."""
    config = CompressionConfig(compression_ratio=compression_ratio)
    kept = sum(tensor.kept for tensor in config.layout(variables).tensors)
    return sum(math.prod(v.shape) for v in variables) / kept
