"""What a plan is, whatever the method of reduction that works by it."""

from collections.abc import Sequence
from typing import Protocol

from tf_scalecom.wire.layout import TensorLayout


class Plan(Protocol):
    """What a method needs to know of the variables, alike on all replicas. It can be hashed."""

    @property
    def tensors(self) -> tuple[TensorLayout, ...]:
        """Each variable's path, shape and dtype."""

    @property
    def compressed(self) -> tuple[int, ...]:
        """Positions of the variables that do not travel dense."""

    def subset(self, positions: Sequence[int]) -> "Plan":
        """The plan for some of the variables: those that have a gradient in this step."""

    def without_compression(self) -> "Plan":
        """The plan under which all of them travel dense."""
