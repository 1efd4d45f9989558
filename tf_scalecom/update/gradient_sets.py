"""Which variables have a gradient: the same on all workers, or their sums mean nothing.

Gradients travel without names. Where one worker has one for `a` alone and another for `b` alone,
of the same shape, the sum of the two would update `a` here and `b` there. So workers compare which
variables have a gradient, while a step is traced, whenever it is a set that the optimizer has not
had before. A set known already is not compared: one worker may trace a step again where the others
do not (a last batch of another size), and would wait for them. That all have the same one in the
same step is in the instance keys of the collectives then: unlike sets do not meet, and the
watchdog says who has which.
"""

import contextlib
import hashlib
import json
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_scalecom.compat.keras_objects import place_of
from tf_scalecom.workers.agreement import VARIABLE, describe_optimizer, require_same_iterations

_ADVICE = (
    "All workers must have a gradient for the same variables, in the same order: have the loss of "
    "each depend on all of them, if need be by adding 0 * (the sum of what it does not use)."
)
_SHOWN = 3
_NONE = "none"

# By optimizer: the sets that all workers were found to share.
_compared: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, set[str]] = (
    weakref.WeakKeyDictionary()
)


class GradientSet(NamedTuple):
    """The variables whose gradients are reduced together.

    Attributes:
        key: the same on all workers if they have the same set, and only then.
        words: the same for people.
        size: how many there are.
    """

    key: str
    words: str
    size: int


def check(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence, variables: Sequence[keras.Variable]
) -> None:
    """Raises on all workers unless they have gradients for the same variables.

    Called in replica context while a step is traced, for the gradients that are reduced next.

    Raises:
        ValueError: they have not; or, at the first step, the optimizers or their `iterations`
            differ.
    """
    extended = tf.distribute.get_strategy().extended
    workers = getattr(extended, "workers", None)
    if workers is None or len(workers.names) == 1 or not tf.distribute.get_replica_context():
        return
    kinds = [_kind(gradient) for gradient in gradients]
    described = [
        {VARIABLE: _path(v), "variable": _identity(v, optimizer), "gradient": kind}
        for v, kind in zip(variables, kinds, strict=True)
    ]
    present = [(d["variable"], d["gradient"]) for d in described if d["gradient"] != _NONE]
    key = f"gradients {hashlib.sha256(json.dumps(present).encode()).hexdigest()[:12]}"
    known = _compared.setdefault(optimizer, set())
    if key not in known:
        if not known:
            workers.require_alike("the optimizer", describe_optimizer(optimizer))
            require_same_iterations(workers, [optimizer])
        workers.require_alike("the gradients", described, _ADVICE)
        known.add(key)
    extended.next_gradients = GradientSet(key, _words(described), len(present))


@contextlib.contextmanager
def reducing(extended, count: int | None = None) -> Iterator[None]:
    """Inside, the gradients that were checked last are reduced.

    Args:
        extended: of the strategy; does nothing unless it has workers.
        count: how many tensors are reduced: where it is not as many as there are gradients, it is
            something else.
    """
    gradients = getattr(extended, "next_gradients", None)
    if gradients is None or count not in (None, gradients.size):
        yield
        return
    extended.next_gradients = None
    with contextlib.ExitStack() as stack:
        for launcher in extended.launchers:
            stack.enter_context(launcher.within(gradients.key, gradients.words))
        yield


def _identity(variable, optimizer):
    number = tf.distribute.get_strategy().extended.number_of(variable)
    # One that was loaded from a file is known by its place.
    return f"place {place_of(variable, optimizer)}" if number is None else number


def _kind(gradient):
    if gradient is None:
        return _NONE
    return "slices" if isinstance(gradient, tf.IndexedSlices) else "dense"


def _path(variable):
    return getattr(variable, "path", variable.name)


def _words(described):
    absent = [d[VARIABLE] for d in described if d["gradient"] == _NONE]
    if not absent:
        return f"gradients: all of {len(described)}"
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    return (
        f"gradients: {len(described) - len(absent)} of {len(described)}, none of "
        f"{', '.join(absent[:_SHOWN])}{more}"
    )
