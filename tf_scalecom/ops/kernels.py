"""What a back end of kernels must have: one replica's part of a step, and when it can run.

A back end is a module (or another object) with these names, and an entry of `backends.BACKENDS`.
Whichever is chosen, offsets are the same and values are too.

Arguments have one order: what the replica holds (`gradients`, `residuals`), what travels, the plan.
`gradients` are one replica's compressed tensors in their own shapes and dtypes, `residuals` float32
variables of the same shapes, both in the order of `Layout.compressed`. `words` are packed offsets:
int32 [layout.offset_words], first all 1-byte offsets, then 2-byte, then 4-byte ones, each group
little-endian and padded with zeros to a whole word.
"""

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tf_scalecom.wire.layout import Layout


class Kernels(Protocol):
    """A back end.

    Attributes:
        name: the value of TF_SCALECOM_BACKEND that asks for it.
        title: what messages call it, as in "native kernels".
    """

    name: str
    title: str

    def suits(self) -> tuple[bool, str]:
        """Whether "auto" should take it for the devices in sight; and in words, why."""

    def unavailable(self) -> str | None:
        """Why it cannot run in this process; None if it can, and what it needs is loaded then."""

    def unsupported(self, layout: Layout) -> str | None:
        """What of a plan it lacks, e.g. "chunk_keep above 16"; None if it covers all of it."""

    def select(
        self, gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Variable], layout: Layout
    ) -> tf.Tensor:
        """Offsets of the elements to keep of |residual + gradient|, as they travel.

        Those of a chunk of selection "chunk" are ordered by falling magnitude, among equals the
        lowest offset first; those of an "exact" one rise.

        Returns:
            Packed offsets, in range even where a gradient is not finite.
        """

    def any_nonfinite(
        self, gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Variable] = ()
    ) -> tf.Tensor:
        """Whether an element of residual + gradient is not finite in float32, for `gather`.

        Without residuals: of the gradients.

        Returns:
            uint32 0 or 1.
        """

    def gather(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Variable],
        words: tf.Tensor,
        nonfinite: tf.Tensor,
        layout: Layout,
        limit: float | Sequence[float],
    ) -> tf.Tensor:
        """What this replica sends: the selected values of all tensors, and the finite flag.

        Args:
            gradients: this replica's.
            residuals: its residuals.
            words: offsets, from the leader's `select`.
            nonfinite: from `any_nonfinite`, of these gradients and residuals.
            layout: the plan.
            limit: finite values saturate there, as they do at the end of the wire's range. A
                number of the wire's dtype, for all tensors or one for each; infinity for none.

        Returns:
            [layout.kept + 1] in the dtype of the wire. The last is the flag: 0 or, if `nonfinite`,
            infinity, so that a sum says whether residual + gradient is finite on all replicas.
        """

    def update(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Variable],
        words: tf.Tensor,
        reduced: tf.Tensor,
        finite: tf.Tensor,
        layout: Layout,
        limit: float | Sequence[float],
    ) -> list[tf.Tensor]:
        """Filters the residuals in place, if `finite`, and scatters the sums.

        What this replica sent is worked out again, so that `reduced` may take its place in memory.

        Args:
            gradients: this replica's.
            residuals: its residuals, updated.
            words: offsets, from the leader's `select`.
            reduced: [layout.kept + 1] the sum over all replicas of what `gather` made, in the
                dtype of the wire. The flag at its end is not read.
            finite: bool scalar; where false residuals stay and the result is not to be used.
            layout: the plan.
            limit: as for `gather`.

        Returns:
            Reduced gradients, in the shapes and dtypes of `gradients`.
        """
