"""CLT-k where every replica leads a share of the chunks, and so all of them choose in each step.

The chunks of a variable are cut into as many runs of equal length as there are replicas. In step t
replica i of n leads run (i + t) mod n of each variable: it selects there, by its own compensated
gradient, and the offsets of all runs go to all replicas. The last run may be short, or empty.
"""

import dataclasses
import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.compat.tensorflow_runtime import ResourceVariable
from tf_scalecom.ops.words import pack_offsets, unpack_offsets
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.wire.layout import Layout, TensorLayout
from tf_scalecom.wire.shares import share_layout, shares_report


@dataclasses.dataclass(frozen=True)
class Shares:
    """The compressed tensors of a layout in equal shares, padded with zeros.

    Attributes:
        layout: the plan.
        count: number of shares.
    """

    layout: Layout
    count: int

    @functools.cached_property
    def share(self) -> Layout:
        """The plan of one of them."""
        return share_layout(self.layout, self.count)

    def elements(self, tensors: Sequence[tf.Tensor], number: tf.Tensor | int) -> list[tf.Tensor]:
        """One share of tensors: float32, as the plan of a share has them.

        Args:
            tensors: float32, of each compressed variable.
            number: of the share.
        """
        return [
            self._elements(tf.reshape(values, [tensor.elements]), share.elements, number)
            for values, tensor, share in zip(
                tensors, self._tensors, self.share.tensors, strict=True
            )
        ]

    def join(self, words: tf.Tensor) -> tf.Tensor:
        """Words of the layout from those of its shares, int32 [shares, words of a share]."""
        return pack_offsets(
            [
                tf.reshape(offsets, [-1])[: tensor.kept]
                for offsets, tensor in zip(
                    unpack_offsets(words, self.share), self._tensors, strict=True
                )
            ],
            self.layout,
        )

    def split(self, words: tf.Tensor) -> tf.Tensor:
        """Inverse of `join`; offset 0 for what a short share has not."""
        return pack_offsets(self._cut(unpack_offsets(words, self.layout)), self.share)

    def split_values(self, values: tf.Tensor) -> tf.Tensor:
        """What belongs to each share, [shares, values of a share]: 0 for what a short one has not.

        Args:
            values: [layout.kept] of all compressed tensors, one after the other.
        """
        parts = self._cut(tf.split(values, [tensor.kept for tensor in self._tensors]))
        return tf.concat(parts, axis=1)

    @property
    def _tensors(self) -> list[TensorLayout]:
        return [self.layout.tensors[i] for i in self.layout.compressed]

    def _elements(self, flat, size, number):
        if flat.shape[0] == size * self.count:
            return tf.reshape(flat, [self.count, size])[number]
        begin = tf.minimum(tf.cast(number, tf.int64) * size, flat.shape[0])
        here = flat[begin : begin + size]
        missing = size - tf.size(here, out_type=tf.int64)
        return tf.ensure_shape(tf.pad(here, [[0, missing]]), [size])

    def _cut(self, kept) -> list[tf.Tensor]:
        """[kept] of each tensor to [shares, kept of a share]."""
        cut = []
        for own, share in zip(kept, self.share.tensors, strict=True):
            padding = share.kept * self.count - own.shape[0]
            cut.append(tf.reshape(tf.pad(own, [[0, padding]]), [self.count, share.kept]))
        return cut


@keras.saving.register_keras_serializable(package="tf_scalecom")
class SharesTopK(CltK):
    """Every replica leads a share; with `CltK`'s arguments, but for exact selection.

    Raises:
        ValueError: an argument is out of its range.
    """

    bounded = False  # the bound is about one leader's choice
    selections = ("chunk",)

    def plan(self, variables, growth=1.0):
        layout = super().plan(variables, growth)
        # A variable of a single chunk, of which a plan says "exact", is somebody's share, too.
        tensors = (
            t if t.is_dense else dataclasses.replace(t, selection="chunk") for t in layout.tensors
        )
        return dataclasses.replace(layout, tensors=tuple(tensors))

    def report(self, plan, num_replicas, route):
        return shares_report(plan, num_replicas, route)

    def _who_selects(self, step, communicator):
        return [False for _ in communicator.replica_ids]

    def _agreed(self, bucket, compensated, step, communicator):
        shares = Shares(bucket.layout, communicator.num_replicas)
        first = self._first_share(step, communicator)
        chosen = [
            self._select(
                shares, own.values, (replica + first) % communicator.num_replicas, residuals[0]
            )
            for replica, own, residuals in zip(
                communicator.replica_ids, compensated, bucket.residuals, strict=True
            )
        ]
        words = [
            shares.join(tf.roll(of_all, first, axis=0))
            for of_all in communicator.all_gather([own.words for own in chosen])
        ]
        flagged = [
            own._replace(nonfinite=tf.maximum(own.nonfinite, of_share.nonfinite))
            for own, of_share in zip(compensated, chosen, strict=True)
        ]
        return flagged, words

    def _first_share(self, step, communicator) -> tf.Tensor | int:
        """Number of the share that the first replica leads."""
        return tf.cast(step % communicator.num_replicas, tf.int32)

    def _select(self, shares, values, number, residual) -> ops.Compensated:
        """What is selected of one share, on the device of a replica's residual."""
        parts = shares.elements(values, number)
        zeros = [
            self._zero(place, part.shape[0], residual.device) for place, part in enumerate(parts)
        ]
        return ops.kernels_for(shares.share).compensate(parts, zeros, True, shares.share)

    @functools.cached_property
    def _zeros(self) -> dict[tuple, tf.Variable]:
        """By place, size and device."""
        return {}

    def _zero(self, place, size, device):
        """Zeros, in place of residuals: the kernels take each of them once."""
        if (place, size, device) not in self._zeros:
            with tf.init_scope(), tf.device(device):  # in a strategy's scope, too, a plain variable
                self._zeros[place, size, device] = ResourceVariable(tf.zeros([size]))
        return self._zeros[place, size, device]
