"""Where this package takes part in Keras, which has no hook for it.

Each is a method of a Keras class, wrapped once, when the first strategy or optimizer of this
package is made. None changes what Keras computes from finite numbers in one process, or without
this package's collectives.
"""

import functools

import keras

from tf_scalecom.compat.hooks import wrap
from tf_scalecom.fit.keras_steps import weigh_gradients
from tf_scalecom.update import clipped_sums, forward_state, gradient_sets


@functools.cache
def install() -> None:
    """Has Keras call this package; later calls do nothing."""
    wrap(keras.Variable, "_direct_assign", _assign)
    wrap(keras.optimizers.Optimizer, "_filter_empty_gradients", _filter_empty_gradients)
    wrap(keras.optimizers.Optimizer, "_clip_gradients", clipped_sums.clip_gradients)
    wrap(keras.optimizers.Optimizer, "_all_reduce_sum_gradients", clipped_sums.all_reduce)
    scaled = keras.optimizers.LossScaleOptimizer
    wrap(scaled, "_stateful_handle_non_finite_grads", _skip)
    wrap(scaled, "apply", _apply_scaled)


def _assign(assign, variable, value):
    """All assignments that layers make end there."""
    assign(variable, forward_state.before_assignment(variable, value))


def _filter_empty_gradients(filter_empty, optimizer, grads, variables):
    """The one place where a Keras optimizer has all variables and, where there are, gradients."""
    grads, variables = list(grads), list(variables)
    gradient_sets.check(optimizer, grads, variables)
    grads = weigh_gradients(optimizer, grads, variables)
    return filter_empty(optimizer, grads, variables)


def _skip(skip, loss_scaling):
    """Where loss scaling skips a step, of which the optimizer inside hears nothing."""
    forward_state.take_back()
    skip(loss_scaling)


def _apply_scaled(apply, loss_scaling, *args, **kwargs):
    apply(loss_scaling, *args, **kwargs)
    forward_state.update_ends()
