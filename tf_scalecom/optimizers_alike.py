"""Optimizers on several workers: each makes its own, and they are compared in their first step.

A variable made in a strategy's scope takes the first worker's value, for which all workers have to
make it. But one worker alone makes optimizers too: Keras does whenever it saves a model. So what an
optimizer starts with is not sent: it is the same constant on all workers, if their optimizers are
alike, and that is seen when they make their first step, which all do together.
"""

import weakref

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from tf_scalecom.agreement import describe_optimizer
from tf_scalecom.workers import Workers

_OWNER = "_tf_scalecom_optimizer"


def optimizer_in_the_making() -> keras.optimizers.Optimizer | None:
    """The optimizer one of whose variables the caller's callers are creating, if they are."""
    # Keras knows of each name scope whose it is; no function of its tells.
    scopes = global_state.get_global_attribute("name_scope_stack") or ()
    callers = (scope.caller for scope in reversed(scopes))
    return next((c for c in callers if isinstance(c, keras.optimizers.Optimizer)), None)


def is_constant(value: tf.Tensor) -> bool:
    """Whether all elements are equal, as no random ones are; not so if a graph does not tell."""
    elements = tf.get_static_value(value)
    return elements is not None and bool((elements == elements.ravel()[:1]).all())


class FirstSteps:
    """Compares optimizers between workers, each when it makes its first step."""

    def __init__(self, workers: Workers):
        self._workers = workers
        self._compared: weakref.WeakSet[keras.optimizers.Optimizer] = weakref.WeakSet()

    def note_owner(self, variable: tf.Variable) -> None:
        """Tells a variable just created whether it is an optimizer's."""
        optimizer = optimizer_in_the_making()
        if optimizer is not None:
            setattr(variable, _OWNER, weakref.ref(optimizer))

    def update(self, variable: tf.Variable) -> None:
        """Compares the optimizer of a variable that a step of all workers updates."""
        optimizer = getattr(variable, _OWNER, lambda: None)()
        if optimizer is not None and optimizer not in self._compared:
            self._workers.require_alike("the optimizer", describe_optimizer(optimizer))
            self._compared.add(optimizer)
