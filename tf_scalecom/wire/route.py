"""Which way an exchange travels, as far as its bytes depend on it."""

from typing import NamedTuple

# Each bucket costs two collectives, of a millisecond or two: more than smaller ones hide of the
# exchange behind the backward pass (docs/network.md, "Hiding").
BUCKET_BYTES = 512 * 1024


class Route(NamedTuple):
    """What a plan's bytes depend on beside the number of replicas.

    Attributes:
        broadcasts: whether one replica's offsets reach the others by a real broadcast; otherwise by
            an all-reduce with zeros on the others, which costs twice as much.
        bucket_bytes: least payload of the tensors that are exchanged together, as in
            `Layout.buckets`; None if all are.
    """

    broadcasts: bool
    bucket_bytes: float | None


# By TensorFlow's collective runtime, and with all replicas in one list.
COLLECTIVES = Route(True, BUCKET_BYTES)
LIST = Route(True, None)
# By the all-reduce of any `tf.distribute.Strategy`.
ALL_REDUCE = Route(False, None)
