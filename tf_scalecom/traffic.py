"""What a training run has sent: the layout's bytes per step, summed over steps."""

import dataclasses

from tf_scalecom.optimizer import ScaleComOptimizer
from tf_scalecom.report import bytes_ratio


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


class Traffic:
    """Bytes that a worker transmits for gradients, by step; a skipped step is one like any other.

    Args:
        optimizer: a built optimizer.
    """

    def __init__(self, optimizer: ScaleComOptimizer):
        self._compressed = optimizer.compression_report()
        self._warmup = optimizer.compression_report(warmup=True)
        self._warmup_steps = optimizer.warmup_steps

    def between(self, first: int, end: int) -> Bytes:
        """Sum over the steps from `first` to the one before `end`, counted from 0."""
        switch = min(max(self._warmup_steps, first), end)
        return Bytes(
            sent=(switch - first) * self._warmup.bytes_sent
            + (end - switch) * self._compressed.bytes_sent,
            dense=(end - first) * self._compressed.bytes_dense,
        )
