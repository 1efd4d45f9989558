"""What a training run has sent: the layout's bytes per step, summed over steps."""

import dataclasses
import itertools
from typing import Protocol

import keras

from tf_scalecom.wire.report import CompressionReport, bytes_ratio


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Bytes that a worker transmits, and those that dense gradients would have taken."""

    sent: float
    dense: float

    @property
    def ratio(self) -> float:
        """dense / sent; 1 where nothing is sent."""
        return bytes_ratio(self.dense, self.sent)

    def per_step(self, steps: int) -> "Bytes":
        """The mean over a number of steps."""
        return Bytes(self.sent / max(1, steps), self.dense / max(1, steps))


class CompressingOptimizer(Protocol):
    """What is asked of an optimizer that compresses; see `ScaleComOptimizer`."""

    @property
    def warmup_ends(self) -> list[int]: ...

    def compression_report(self, *, step: int) -> CompressionReport: ...


def compressing_optimizer(optimizer: keras.optimizers.Optimizer | None):
    """The one that compresses, which an optimizer is or has inside; None without one."""
    while optimizer is not None and not hasattr(optimizer, "compression_report"):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


class Traffic:
    """Bytes that a worker transmits for gradients, by step; a skipped step is one like any other.

    Args:
        optimizer: a built optimizer.
    """

    def __init__(self, optimizer: CompressingOptimizer):
        begins = [0, *optimizer.warmup_ends]
        self._reports = {begin: optimizer.compression_report(step=begin) for begin in begins}

    def between(self, first: int, end: int) -> Bytes:
        """Sum over the steps from `first` to the one before `end`, counted from 0."""
        sent = dense = 0.0
        for begin, next_begin in itertools.pairwise([*self._reports, end]):
            steps = max(0, min(end, next_begin) - max(first, begin))
            sent += steps * self._reports[begin].bytes_sent
            dense += steps * self._reports[begin].bytes_dense
        return Bytes(sent, dense)
