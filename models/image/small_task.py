"""As `task.py`, with a network of a quarter of the weights: where many runs are to be compared."""

import functools

import convnet
import task


def build_task() -> task.ImageTask:
    """A network of 409,034 weights."""
    return task.build_task(functools.partial(convnet.build_convnet, filters=(16, 32), units=256))
