"""Variables that one worker may make without the others.

A variable made in a strategy's scope takes the first worker's value, for which all workers have to
make it. But one worker alone makes optimizers: Keras does whenever it saves a model. So what an
optimizer starts with is not sent: it is the same constant on all workers, if their optimizers are
alike, and that is seen when they make their first step, which all do together (`gradient_sets`).
"""

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.compat.keras_objects import callers_of_name_scopes

# A `tf.train.Checkpoint` has one, from its first save on.
_SAVE_COUNTER = "save_counter"


def is_made_alone(name: str | None) -> bool:
    """Whether the variable that the caller's callers are creating may be one worker's alone.

    Args:
        name: what TensorFlow is told of its name.
    """
    callers = callers_of_name_scopes()
    of_optimizer = any(isinstance(caller, keras.optimizers.Optimizer) for caller in callers)
    return of_optimizer or name == _SAVE_COUNTER


def is_constant(value: tf.Tensor) -> bool:
    """Whether all elements are equal, as no random ones are; not so if a graph does not tell."""
    in_graph = not hasattr(value, "numpy")
    elements = tf.get_static_value(value) if in_graph else np.asarray(value)  # without a copy
    return elements is not None and bool((elements == elements.ravel()[:1]).all())
