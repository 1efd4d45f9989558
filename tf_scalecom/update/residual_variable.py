"""The variable behind a residual, which checkpoints keep and restore for each replica."""

import keras
import tensorflow as tf


class ResidualVariable(keras.Variable):
    """A float32 variable of zeros, of which each replica of this process has its own.

    Reading it costs no communication. To Keras and to TensorFlow it is the first replica's alone, a
    `tf.train.Checkpoint` of which would restore that to all; so it says itself what a checkpoint
    holds: all of this process's, one after the other.
    """

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
