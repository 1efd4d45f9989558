"""Plain SGD, whose update of a variable is zero where its gradient is.

So it needs no gradient but the elements that were sent, and changes those of a variable in place,
to the bit as Keras does. Momentum, decay, averages and constraints move the others, too.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.reduction.method import Method
from tf_scalecom.wire.plan import Plan


def descending(
    inner: keras.optimizers.Optimizer,
    variables: Sequence[keras.Variable],
    plan: Plan,
    method: Method,
) -> tuple[int, ...]:
    """Positions of the compressed variables that an optimizer updates so.

    Args:
        inner: the optimizer.
        variables: what it updates.
        plan: for them.
        method: whose plan it is.
    """
    is_plain = (
        type(inner) is keras.optimizers.SGD
        and not inner.momentum
        and not inner.weight_decay
        and not inner.use_ema
    )
    if not (is_plain and method.has_slices and ops.backend()[0].descends_in_place):
        return ()
    return tuple(
        i
        for i in plan.compressed
        if variables[i].dtype == "float32" and variables[i].constraint is None
    )


def descend(
    variables: Sequence[keras.Variable],
    gradients: Sequence[tf.IndexedSlices],
    learning_rate: tf.Tensor,
) -> None:
    """Updates variables. Call it in replica context.

    Args:
        variables: some of `descending`.
        gradients: slices of them as vectors.
        learning_rate: scalar of any float dtype.
    """
    ops.backend()[0].descend(
        [variable.value for variable in variables],
        gradients,
        tf.cast(learning_rate, tf.float32),
    )
