"""How replicas talk to each other, as the algorithm sees it.

A communicator works on the list of the replicas of this process, in cross-replica context: what
replica r holds is entry r of a list. That is all that `algorithm` knows of the outside, so the
same code runs over TensorFlow's collectives, under any other strategy, and with all replicas in
one list.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import Mirrored, PerReplica, regroup


class Communicator(Protocol):
    """Sums and broadcasts among `num_replicas` replicas, some of which live in this process."""

    # Whether `broadcast` is a real one; otherwise it costs as much as an all-reduce.
    broadcasts: bool
    # Least payload of tensors that are worth an exchange of their own; None: all go in one.
    bucket_bytes: float | None
    num_replicas: int
    # Ids, in the whole group, of this process's replicas: Python ints or int32 scalars.
    replica_ids: Sequence

    def all_reduce(self, tensors: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Sums over all replicas.

        Args:
            tensors: for each replica of this process, the same list of tensors (IndexedSlices
                stay so).

        Returns:
            The sums in the same structure, bit-equal on all replicas.
        """

    def broadcast(
        self, make: Sequence[Callable[[], tf.Tensor]], leader: tf.Tensor, size: int
    ) -> list[tf.Tensor]:
        """Gives every replica the leader's vector.

        Args:
            make: for each replica of this process, a function that computes the int32 [size] vector
                to send; run on the leader alone.
            leader: int32 scalar, id of the sender; known at run time only.
            size: length of the vector.

        Returns:
            int32 [size] for each replica of this process.
        """


class StrategyCommunicator:
    """Communicates through any `tf.distribute.Strategy` that can reduce, TPU included.

    Such a strategy offers no broadcast with a sender chosen at run time: the leader's vector is
    summed with zeros from all others.
    """

    broadcasts = False
    bucket_bytes = None

    def __init__(self, strategy: tf.distribute.Strategy, replica_ids: Sequence):
        self._extended = strategy.extended
        self._unwrap = strategy.experimental_local_results
        self.num_replicas = strategy.num_replicas_in_sync
        self.replica_ids = replica_ids

    def all_reduce(self, tensors):
        values = [per_replica(list(parts)) for parts in zip(*tensors, strict=True)]
        # Reduced where they already are: every replica gets the sum.
        sums = self._extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [(value, value) for value in values]
        )
        return [list(parts) for parts in zip(*map(self._unwrap, sums), strict=True)]

    def broadcast(self, make, leader, size):
        masked = _zeros_unless_leader(make, self.replica_ids, leader, size)
        return [vectors[0] for vectors in self.all_reduce([[vector] for vector in masked])]


class ListCommunicator:
    """All replicas are in this process's list: for simulation, and for a single replica."""

    broadcasts = True
    bucket_bytes = None

    def __init__(self, num_replicas: int):
        self.num_replicas = num_replicas
        self.replica_ids = range(num_replicas)

    def all_reduce(self, tensors):
        sums = [
            tf.add_n([tf.convert_to_tensor(p) for p in parts])
            for parts in zip(*tensors, strict=True)
        ]
        return [sums] * self.num_replicas

    def broadcast(self, make, leader, size):
        # Not a switch: each of its n branches would take what all n replicas' vectors are made of.
        vector = tf.add_n(_zeros_unless_leader(make, self.replica_ids, leader, size))
        return [vector] * self.num_replicas


def _zeros_unless_leader(make, replica_ids, leader, size) -> list[tf.Tensor]:
    return [
        tf.cond(tf.equal(replica_id, leader), make_vector, lambda: tf.zeros([size], tf.int32))
        for replica_id, make_vector in zip(replica_ids, make, strict=True)
    ]


def per_replica(values: Sequence, mirrored: bool = False):
    """Joins one value per local replica into what `tf.distribute` functions take.

    Args:
        values: one tensor per replica of this process.
        mirrored: whether they are equal on all replicas.

    Returns:
        A `PerReplica` or `Mirrored`; the bare value where there is one replica.
    """
    wrap = Mirrored if mirrored else PerReplica
    return regroup(tuple(values), wrap_class=wrap)
