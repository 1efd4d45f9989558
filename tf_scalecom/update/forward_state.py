"""What a step assigns before its update, so that a skipped step leaves nothing behind.

A step that is skipped for a gradient that is not finite has been through its forward pass, where
layers assign: moving averages of batch normalisation, codebooks, vectors of spectral norms. From
a batch with a NaN they would be NaN for ever. So the value before the first assignment of a step
is kept, which costs a read (an assignment replaces the buffer, it does not write to it), and a skip
puts it back on all replicas.

Where a layer assigns inside a condition, a loop or a function of its own, the step around it cannot
know the value before; there what is not finite is not assigned. The same goes for a replica whose
batch is empty: means over no rows are NaN.

Metrics are left alone: a NaN in the data is to be seen in the logs.
"""

import dataclasses
import weakref

import tensorflow as tf

from tf_scalecom.compat.keras_objects import in_training_call
from tf_scalecom.compat.tensorflow_runtime import graph_of_step
from tf_scalecom.fit.empty_batches import finite_or

_ATTRIBUTE = "_tf_scalecom_assigned"


@dataclasses.dataclass
class _Assigned:
    """One replica's variable that was assigned.

    Attributes:
        variable: the Keras variable, weakly: the eager graph outlives models.
        handle: the resource of this replica.
        before: the value that it had.
        in_this_update: whether no optimizer has updated since.
    """

    variable: weakref.ref
    handle: tf.Tensor
    before: tf.Tensor
    in_this_update: bool = True


def before_assignment(variable, value: tf.Tensor) -> tf.Tensor:
    """Is told of each assignment to a Keras variable, and returns the value to assign."""
    if not _is_state(variable) or tf.distribute.get_replica_context() is None:
        return value
    graph = tf.compat.v1.get_default_graph()
    step_graph = graph_of_step()
    if tf.executing_eagerly() and step_graph is None and not in_training_call():
        # By a callback, or from a file.
        _assigned_in(graph).pop(id(variable._value.handle), None)
        return value
    before = _remember(variable, graph)
    value = tf.cast(value, before.dtype)
    is_empty_here = getattr(tf.distribute.get_strategy().extended, "is_empty_here", None)
    empty = is_empty_here() if is_empty_here else None
    if empty is not None:
        value = finite_or(before, value, where=empty)
    inside = graph is not step_graph and (step_graph is not None or in_training_call())
    return finite_or(before, value) if inside and not tf.executing_eagerly() else value


def take_back(*, all_of_it: bool = True) -> None:
    """Puts back what the step has assigned; call it where the step is skipped.

    Args:
        all_of_it: or else only what is not finite. That is also all that is put back of what was
            assigned before another optimizer's update.
    """
    for assigned in _assigned_around():
        with tf.device(assigned.handle.device):
            value = assigned.before
            if not (all_of_it and assigned.in_this_update):
                current = tf.raw_ops.ReadVariableOp(resource=assigned.handle, dtype=value.dtype)
                value = finite_or(value, current)
            tf.raw_ops.AssignVariableOp(resource=assigned.handle, value=value)


def update_ends() -> None:
    """Is told where an optimizer has updated or skipped, in the graph of the step."""
    for assigned in _assigned_in(tf.compat.v1.get_default_graph()).values():
        assigned.in_this_update = False


def _is_state(variable):
    """Whether a variable may be a layer's state, and neither a metric's nor an optimizer's rate."""
    return (
        not variable.trainable
        and variable.aggregation in ("none", "mean")
        and tf.as_dtype(variable._value.dtype).is_floating
    )


def _remember(variable, graph):
    """The value before the first assignment of this update: read now, if this is the first."""
    handle, known = variable._value.handle, _assigned_in(graph)
    if tf.executing_eagerly():
        for key in [key for key, assigned in known.items() if assigned.variable() is None]:
            del known[key]
    if id(handle) not in known or not known[id(handle)].in_this_update:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable._value.dtype)
        known[id(handle)] = _Assigned(weakref.ref(variable), handle, value)
    return known[id(handle)].before


def _assigned_in(graph) -> dict[int, _Assigned]:
    # Kept by the graph, whose tensors these are: elsewhere they would keep it alive. Not in its
    # collections, which a graph inside takes over.
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    return getattr(graph, _ATTRIBUTE)


def _assigned_around() -> list[_Assigned]:
    """What was assigned in the innermost graph with any, of those around this place."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if assigned := _assigned_in(graph):
            return [a for a in assigned.values() if a.variable() is not None]
        graph = getattr(graph, "outer_graph", None)
    return []
