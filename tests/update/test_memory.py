"""Whose memory a compressed step uses: buffers change hands, and none of their size is new.

A step takes no more than its gradients: theirs become the residuals', and those that the residuals
had hold the dense sums.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_strategies import make_strategy

import tf_scalecom as sc

SHAPE = (400, 500)


class Addresses:
    """Where tensors lie in memory, noted when they are there: one of each name on each device.

    To be compared on one device alone: another's may lie where this one's freed memory was.
    """

    def __init__(self):
        self.of = {}

    def note(self, name, device, values):
        """Returns an operation."""

        def note(array):
            self.of.setdefault(name, {})[device] = array.__array_interface__["data"][0]
            return np.int64(0)

        return tf.numpy_function(note, [values], tf.int64)


class WatchedSGD(keras.optimizers.SGD):
    """Notes where the dense sum lies that it is given."""

    addresses: Addresses

    def update_step(self, gradient, variable, learning_rate):
        self.addresses.note("sum", variable.device, gradient)
        super().update_step(gradient, variable, learning_rate)


def addresses_in_a_step(
    optimizer, dtype="float32", is_read=False, is_part=False, method=sc.methods.CltK, **arguments
):
    """Of two replicas: the gradients', the residuals' before and after, the dense sums'."""
    strategy = make_strategy("scalecom_ops")
    addresses = Addresses()
    with strategy.scope():
        variable = keras.Variable(np.ones(SHAPE), dtype=dtype, name="w")
        inner = optimizer(0.1)
        inner.addresses = addresses
        wrapper = sc.CompressedOptimizer(inner, method(100, **arguments))
        wrapper.build([variable])
    (residual,) = wrapper.residual_variables

    @tf.function(autograph=False)
    def step():
        def on_replica():
            gradient = 2 * variable.value
            if is_part:
                gradient = tf.unstack(tf.stack([gradient, gradient]))[1]
            with tf.control_dependencies([addresses.note("gradient", gradient.device, gradient)]):
                gradient = tf.identity(gradient)
            wrapper.apply([gradient], [variable])

        strategy.run(on_replica)

    def read():
        return [(part.device, part.read_value()) for part in residual.value.values]

    @tf.function(autograph=False)
    def note_residuals(name):
        for device, value in read():
            addresses.note(name, device, value)

    step()
    addresses.of.clear()
    note_residuals("before")
    readers = read() if is_read else []
    step()
    del readers
    note_residuals("after")
    return addresses.of


def differ(addresses, others):
    return all(addresses[device] != others[device] for device in addresses)


WAYS = {
    "plain": {},
    "bfloat16_wire": dict(value_dtype="bfloat16"),
    "filtered": dict(beta=0.5),
    "owners": dict(method=sc.methods.OwnersTopK),
}


@pytest.mark.parametrize("way", WAYS)
def test_buffers_change_hands(way):
    of = addresses_in_a_step(WatchedSGD, **WAYS[way])
    assert len(of["gradient"]) == 2
    assert of["after"] == of["gradient"]
    assert of["sum"] == of["before"]


def test_sgd_itself_has_no_dense_sum():
    of = addresses_in_a_step(keras.optimizers.SGD)
    assert of["after"] == of["gradient"]


def test_a_reader_keeps_the_buffer_that_it_reads():
    of = addresses_in_a_step(WatchedSGD, is_read=True)
    assert of["after"] == of["gradient"]
    assert differ(of["sum"], of["before"])


def test_a_narrow_gradient_has_a_buffer_beside_it():
    of = addresses_in_a_step(WatchedSGD, dtype="bfloat16")
    assert differ(of["after"], of["before"])


def test_a_part_of_a_larger_buffer_does_not_keep_that_alive():
    of = addresses_in_a_step(WatchedSGD, is_part=True)
    assert differ(of["after"], of["gradient"])
    assert of["sum"] == of["before"]
