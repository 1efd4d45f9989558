"""Strategies of one process on its four logical CPUs, by the way in which gradients meet."""

import functools

import pytest
import tensorflow as tf

import tf_scalecom as sc

DEVICES = [f"CPU:{i}" for i in range(4)]
# Before a commit the way that several workers use will do.
REPLICA_ROUTES = (pytest.param("own_ops", marks=pytest.mark.slow), "scalecom_ops")
ROUTES = ("none", *REPLICA_ROUTES)


@functools.cache
def make_strategy(route, replicas=2):
    devices = DEVICES[:replicas]
    if route == "none":
        return None
    if route == "own_ops":
        return tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=sc.ScaleComAllReduce.for_devices(devices)
    )
