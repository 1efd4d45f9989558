"""What a back end of kernels must have: one replica's part of a step, and when it can run.

A back end is a module (or another object) with these names, and an entry of `backends.BACKENDS`.
Whichever is chosen, offsets are the same and values are too.

    values, words, nonfinite = compensate(gradients, residuals, leads, layout)
    selected, unsent = gather(values, the leader's words, nonfinite, layout, limit)
    free = filter_residuals(unsent, residuals, finite, layout)
    outputs = scatter(words, the sum of all replicas' selected, layout, free)

Arguments have one order: what the replica holds, what travels, the plan. `gradients` are one
replica's compressed tensors in their own shapes and dtypes, `residuals` float32 variables of the
same shapes, both in the order of `Layout.compressed`. `words` are packed offsets: int32
[layout.offset_words], first all 1-byte offsets, then 2-byte, then 4-byte ones, each group
little-endian and padded with zeros to a whole word.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tf_scalecom.wire.layout import Layout


class Compensated(NamedTuple):
    """Residual + gradient of one replica.

    Attributes:
        values: float32, in the variables' shapes.
        words: where it leads, offsets of the elements to keep of |values|, as they travel: those of
            a chunk of selection "chunk" are ordered by falling magnitude, among equals the lowest
            offset first; those of an "exact" one rise. In range even where a value is not finite.
        nonfinite: uint32 scalar, 0 or 1: whether a value is not finite.
    """

    values: list[tf.Tensor]
    words: tf.Tensor
    nonfinite: tf.Tensor


class Gathered(NamedTuple):
    """One replica's part of an exchange.

    Attributes:
        selected: [layout.kept + 1] in the dtype of the wire, what it sends: the values of all
            tensors, and a flag: 0 or, where residual + gradient is not finite, infinity, so that a
            sum says whether it is finite on all replicas.
        unsent: residual + gradient without that, float32 in the variables' shapes.
    """

    selected: tf.Tensor
    unsent: list[tf.Tensor]


class Kernels(Protocol):
    """A back end.

    Attributes:
        name: the value of TF_SCALECOM_BACKEND that asks for it.
        title: what messages call it, as in "native kernels".
        descends_in_place: whether its `descend` leaves alone what does not change, and so is faster
            than an optimizer's own update.
    """

    name: str
    title: str
    descends_in_place: bool

    def suits(self) -> tuple[bool, str]:
        """Whether "auto" should take it for the devices in sight; and in words, why."""

    def unavailable(self) -> str | None:
        """Why it cannot run in this process; None if it can, and what it needs is loaded then."""

    def unsupported(self, layout: Layout) -> str | None:
        """What of a plan it lacks, e.g. "chunk_keep above 16"; None if it covers all of it."""

    def compensate(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Variable],
        leads: tf.Tensor | bool,
        layout: Layout,
    ) -> Compensated:
        """Adds gradients to residuals, which stay, and selects where this replica leads.

        Args:
            gradients: this replica's.
            residuals: its residuals.
            leads: bool scalar. Where false, `words` are zeros.
            layout: the plan.
        """

    def gather(
        self,
        compensated: Sequence[tf.Tensor],
        words: tf.Tensor,
        nonfinite: tf.Tensor,
        layout: Layout,
        limit: float | Sequence[float],
    ) -> Gathered:
        """Takes what this replica sends from residual + gradient.

        Args:
            compensated: `Compensated.values` of this replica.
            words: the leader's.
            nonfinite: this replica's.
            layout: the plan.
            limit: finite values saturate there, as they do at the end of the wire's range. A
                number of the wire's dtype, for all tensors or one for each; infinity for none.
        """

    def filter_residuals(
        self,
        unsent: Sequence[tf.Tensor],
        residuals: Sequence[tf.Variable],
        finite: tf.Tensor | bool,
        layout: Layout,
    ) -> list[tf.Tensor]:
        """Residual' = (1 - beta) residual + beta unsent, if `finite`; else residuals stay.

        Args:
            unsent: `Gathered.unsent`.
            residuals: updated.
            finite: bool scalar.
            layout: the plan.

        Returns:
            float32 tensors in the variables' shapes whose elements nobody needs: for `scatter`.
        """

    def scatter(
        self, words: tf.Tensor, reduced: tf.Tensor, layout: Layout, free: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Sums as dense tensors.

        Args:
            words: the leader's.
            reduced: [layout.kept + 1] the sum over all replicas of `Gathered.selected`. The flag at
                its end is not read.
            layout: the plan.
            free: float32 tensors in the variables' shapes, in whose place the result may be.

        Returns:
            In the shapes and dtypes of the variables; 0 where nothing was sent.
        """

    def descend(
        self,
        variables: Sequence[tf.Variable],
        slices: Sequence[tf.IndexedSlices],
        learning_rate: tf.Tensor,
    ) -> None:
        """Variable -= learning_rate * gradient, where that is not 0.

        To the bit what a dense gradient gives, but that where the gradient is 0 a subnormal element
        stays, and all others do under a learning rate that is not finite.

        Args:
            variables: float32, all different, updated.
            slices: float32 gradients of the variables as vectors; their indices are distinct.
            learning_rate: float32 scalar.
        """

    def add(
        self,
        tensors: Sequence[tf.Tensor],
        indices: Sequence[tf.Tensor],
        values: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Tensors with something added to some elements, in place where nobody else needs them.

        Args:
            tensors: float32.
            indices: of each tensor as a vector, integers [rows, size]; those of a row are distinct,
                and rows are added in turn. One out of range is left out.
            values: float32 [rows, size] of each.
        """
