"""How replicas talk to each other, as a method of reduction sees it.

A communicator works on the list of the replicas of this process, in cross-replica context: what
replica r holds is entry r of a list. That is all that a method of reduction knows of the outside,
so the same code runs over TensorFlow's collectives, under any other strategy, and with all replicas
in one list.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import Mirrored, PerReplica, regroup
from tf_scalecom.wire.route import ALL_REDUCE, LIST, Route
from tf_scalecom.workers.collectives import CollectiveLauncher


class Communicator(Protocol):
    """Sums and broadcasts among `num_replicas` replicas, some of which live in this process."""

    route: Route
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

    def all_gather(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Gives every replica the vectors of all.

        Args:
            vectors: int32 [size] for each replica of this process.

        Returns:
            int32 [num_replicas, size], by id of the sender.
        """

    def all_to_all(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Gives every replica one vector of each.

        Args:
            vectors: int32 [num_replicas, size], by id of the receiver, for each replica of this
                process.

        Returns:
            int32 [num_replicas, size], by id of the sender.
        """


class CollectiveCommunicator:
    """Communicates through TensorFlow's collective runtime.

    Args:
        launchers: one for each replica of this process, by rank.
        first_replica: id of the first of them.
        num_replicas: of the whole group.
        bucket_bytes: as in `Route`.
    """

    def __init__(
        self,
        launchers: Sequence[CollectiveLauncher],
        first_replica: int,
        num_replicas: int,
        bucket_bytes: float,
    ):
        self._launchers = launchers
        self.route = Route(True, bucket_bytes)
        self.num_replicas = num_replicas
        self.replica_ids: Sequence = range(first_replica, first_replica + len(launchers))

    def all_reduce(self, tensors):
        return [
            launcher.all_reduce_list(list(own))
            for launcher, own in zip(self._launchers, tensors, strict=True)
        ]

    def broadcast(self, make, leader, size):
        words = []
        for launcher, replica_id, make_vector in zip(
            self._launchers, self.replica_ids, make, strict=True
        ):
            wire = _words_dtype(launcher.device)
            sent = launcher.broadcast(
                lambda make_vector=make_vector, wire=wire: tf.bitcast(make_vector(), wire),
                is_source=tf.equal(leader, replica_id),
                source_rank=leader,
                shape=[size],
                dtype=wire,
            )
            words.append(tf.bitcast(sent, tf.int32))
        return words

    def all_gather(self, vectors):
        return self._as_words(lambda launcher, vector: launcher.stack(vector), vectors)

    def all_to_all(self, vectors):
        if _keys_clash(self.replica_ids):  # they are of one machine: its own memory is the wire
            everything = self.all_gather([tf.reshape(v, [-1]) for v in vectors])
            return [
                tf.reshape(all_of, [self.num_replicas, *v.shape])[:, replica]
                for all_of, v, replica in zip(everything, vectors, self.replica_ids, strict=True)
            ]
        return self._as_words(lambda launcher, vector: launcher.all_to_all(vector), vectors)

    def _as_words(self, collective, vectors):
        results = []
        for launcher, vector in zip(self._launchers, vectors, strict=True):
            sent = tf.bitcast(vector, _words_dtype(launcher.device))
            results.append(tf.bitcast(collective(launcher, sent), tf.int32))
        return results


def _words_dtype(device: str) -> tf.DType:
    """What words of offsets are called on their way between devices of this kind.

    TensorFlow keeps every int32 that passes a cond on a GPU in host memory: the words would go to
    the host and back on each replica. As the bits of a float32 they stay in device memory; nothing
    computes with them on the way.
    """
    return tf.float32 if tf.DeviceSpec.from_string(device).device_type == "GPU" else tf.int32


def _keys_clash(replica_ids: Sequence[int]) -> bool:
    """Whether the runtime would confuse two messages of an all-to-all.

    It calls one from replica 1 to 11 by the same name as one from 11 to 1, and looks for it by that
    name in the sender's process.
    """
    names = [str(replica) for replica in replica_ids]
    return any(b != a and b.startswith(a) for a in names for b in names)


class StrategyCommunicator:
    """Communicates through any `tf.distribute.Strategy` that can reduce, TPU included.

    Such a strategy offers no broadcast with a sender chosen at run time, nor messages of one to
    another: what one sends is summed with zeros from all others.
    """

    route = ALL_REDUCE

    def __init__(self, strategy: tf.distribute.Strategy, replica_ids: Sequence):
        self._extended = strategy.extended
        self._unwrap = strategy.experimental_local_results
        self.num_replicas = strategy.num_replicas_in_sync
        self.replica_ids = replica_ids

    def all_reduce(self, tensors):
        values = [per_replica(list(parts)) for parts in zip(*tensors, strict=True)]
        if not values:
            return [[] for _ in tensors]
        # Reduced where they already are: every replica gets the sum.
        sums = self._extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [(value, value) for value in values]
        )
        return [list(parts) for parts in zip(*map(self._unwrap, sums), strict=True)]

    def broadcast(self, make, leader, size):
        masked = _zeros_unless_leader(make, self.replica_ids, leader, size)
        return self._summed(masked)

    def all_gather(self, vectors):
        return self._summed([self._placed(v, r) for v, r in self._with_ids(vectors)])

    def all_to_all(self, vectors):
        sums = self._summed([self._placed(v, r) for v, r in self._with_ids(vectors)])
        return [everything[:, replica] for everything, replica in self._with_ids(sums)]

    def _with_ids(self, vectors):
        return zip(vectors, self.replica_ids, strict=True)

    def _summed(self, values):
        return [parts[0] for parts in self.all_reduce([[value] for value in values])]

    def _placed(self, value, replica):
        """In one place for each replica, zeros in all of them but its own."""
        mine = tf.one_hot(replica, self.num_replicas, dtype=value.dtype)
        return tf.reshape(mine, [-1, *[1] * len(value.shape)]) * value


class ListCommunicator:
    """All replicas are in this process's list: for simulation, and for a single replica."""

    route = LIST

    def __init__(self, num_replicas: int):
        self.num_replicas = num_replicas
        self.replica_ids: Sequence = range(num_replicas)

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

    def all_gather(self, vectors):
        return [tf.stack(vectors)] * self.num_replicas

    def all_to_all(self, vectors):
        return tf.unstack(tf.stack(vectors, axis=1))


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
