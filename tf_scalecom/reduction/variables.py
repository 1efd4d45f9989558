"""The variables that a method of reduction keeps from step to step.

Each says whose it is, so that whoever saves, restores or copies it needs to know no names:

    per_replica   every replica has a value of its own
    summable      of those only the sum over all replicas means something, so that other numbers of
                  replicas can share it out
"""

import keras
import tensorflow as tf


class ResidualVariable(keras.Variable):
    """A float32 variable of zeros, of which each replica of this process has its own.

    Reading it costs no communication. To Keras and to TensorFlow it is the first replica's alone, a
    `tf.train.Checkpoint` of which would restore that to all; so it says itself what a checkpoint
    holds: all of this process's, one after the other.
    """

    per_replica = True
    summable = True

    def __init__(self, shape, name: str):
        super().__init__(
            "zeros",
            shape=shape,
            dtype="float32",
            trainable=False,
            synchronization="on_read",
            aggregation="only_first_replica",
            name=name,
        )

    @property
    def parts(self) -> tuple[tf.Variable, ...]:
        """The variables of this process's replicas."""
        strategy = getattr(self.value, "distribute_strategy", None) or tf.distribute.get_strategy()
        return strategy.experimental_local_results(self.value)

    # What `tf.train.Checkpoint` asks of an object that has a state of its own.

    def _serialize_to_tensors(self):
        with tf.device("CPU"):
            return {"VARIABLE_VALUE": tf.stack([part.read_value() for part in self.parts])}

    def _restore_from_tensors(self, restored_tensors):
        saved, parts = restored_tensors["VARIABLE_VALUE"], self.parts
        if len(saved) != len(parts):  # of another number of replicas: what counts is the sum
            saved = [tf.reduce_sum(saved, axis=0) / len(parts)] * len(parts)
        for part, value in zip(parts, saved, strict=True):
            part.assign(value)
        return self.value

    def _copy_trackable_to_cpu(self, object_map):  # for an asynchronous one
        object_map[self] = tf.Variable(self._serialize_to_tensors()["VARIABLE_VALUE"])


class SharedVariable(keras.Variable):
    """A float32 variable that has the same value on all replicas.

    Args:
        value: array, the value to begin with.
        name: its name.
    """

    per_replica = False
    summable = False

    def __init__(self, value, name: str):
        super().__init__(
            value, dtype="float32", trainable=False, aggregation="only_first_replica", name=name
        )


def is_summable(variable: keras.Variable) -> bool:
    """Whether only the sum over all replicas means something; not so of Keras's own variables."""
    return getattr(variable, "summable", False)
