"""Keras's steps on several replicas: each computes as one process would, on its share of the rows.

Keras divides losses by the number of replicas, those that it can: not what a function of the user's
makes a scalar of, nor what a `train_step` of the user's computes. Here no loss is divided. What the
replicas share counts by their shares of the rows instead (`shares.py`): the loss as it is handed to
`optimizer.scale_loss`, as in Keras's own `train_step`, or else the gradients; each number that is
given to a `Mean` or a `Sum`; the logs.

All this holds in the steps that `fit`, `evaluate` and their likes make. In a loop of the user's
own, around `strategy.run`, Keras's losses are divided by the number of replicas, as ever.
"""

import functools
import weakref
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_scalecom.compat.hooks import wrap
from tf_scalecom.compat.keras_calls import innermost_call
from tf_scalecom.compat.keras_trainer import Trainer, loss_library, trainer_library
from tf_scalecom.fit import shares, step_logs, whole_batch
from tf_scalecom.fit.shares import Share

_STEP_OF = {"fit": "train_step", "evaluate": "test_step"}

# By model and call: the metrics whose results its steps return, by their places in the logs.
_results: weakref.WeakKeyDictionary[
    keras.Model, dict[str | None, dict[tuple, step_logs.MetricResult]]
] = weakref.WeakKeyDictionary()


@functools.cache
def install() -> None:
    """Has Keras call this package; later calls do nothing."""
    wrap(Trainer, "_make_function", _make_function)
    wrap(Trainer, "_get_metrics_result_or_logs", _logs_of_epoch)
    wrap(trainer_library, "reduce_per_replica", _reduce_logs)
    wrap(loss_library, "scale_loss_for_distribution", _unless_shared)
    wrap(loss_library, "unscale_loss_for_distribution", _unless_shared)
    wrap(loss_library, "reduce_weighted_values", _reduce_weighted)
    wrap(loss_library, "reduce_values", _reduce_values)
    wrap(loss_library, "apply_mask", _apply_mask)
    wrap(keras.losses.Loss, "__call__", _call_loss)
    wrap(keras.metrics.Mean, "update_state", _update_mean)
    wrap(keras.metrics.Sum, "update_state", _update_sum)
    wrap(keras.optimizers.Optimizer, "scale_loss", _scale_loss)
    wrap(keras.optimizers.LossScaleOptimizer, "scale_loss", _scale_loss)


def weigh_gradients(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence, variables: Sequence
) -> list:
    """Gradients that may be summed over replicas: weighed, unless their loss was.

    Args:
        optimizer: to which they are given.
        gradients: of one replica: tensors, `tf.IndexedSlices` or None.
        variables: of which they are.
    """
    share = shares.here()
    if share is None:
        return list(gradients)
    optimizers = {id(part) for part in _parts(optimizer)}
    if optimizers <= share.weighed:
        share.weighed -= optimizers
        return list(gradients)
    return [
        # What a variable takes over as its value, a scale of float8, is no gradient.
        g if getattr(v, "overwrite_with_gradient", False) else _times(g, share.weight)
        for g, v in zip(gradients, variables, strict=True)
    ]


# --- Steps ---------------------------------------------------------------------------------------


def _make_function(make, model, step):
    strategy = model.distribute_strategy
    if not _is_shared(strategy):
        return make(model, step)
    count = strategy.extended.step_count
    # By what the step is, not by its name: it may be decorated, or a model's own attribute.
    call = next((call for call, name in _STEP_OF.items() if step == getattr(model, name)), None)

    def shared_step(data):
        share = Share(model, data, count.read_rows(), strategy.num_replicas_in_sync)
        strategy.extended.set_share_here(share)
        if not strategy.extended.is_first_replica_here():  # whose logs have the same names
            return step_logs.join(step(data), share)
        with step_logs.noting_results(model) as results:
            logs = step(data)
        _results.setdefault(model, {})[call] = {
            place: results[id(v)]
            for place, v in keras.tree.flatten_with_path(logs)
            if id(v) in results
        }
        return step_logs.join(logs, share)

    function = make(model, shared_step)

    def run(iterator):
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            count.forget_rows()  # a batch of `train_on_batch`
        return function(iterator)

    return run


def _reduce_logs(reduce, values, strategy, reduction):
    if reduction != "auto" or not _is_shared(strategy):
        return reduce(values, strategy, reduction)
    return keras.tree.map_structure(  # as `step_logs.join` leaves them
        lambda value: strategy.experimental_local_results(value)[0], values
    )


def _logs_of_epoch(get, model, logs):
    results, call = get(model, logs), innermost_call()
    if not _is_shared(model.distribute_strategy):
        return results
    if not logs and call is not None and call.logs:
        return call.logs  # of an epoch that a restart found at its last step
    if results is logs and call is not None:
        of_all = _results.get(model, {}).get(call.name, {})
        leaves = [
            of_all[place].of_all() if place in of_all else leaf
            for place, leaf in keras.tree.flatten_with_path(logs)
        ]
        results = keras.tree.pack_sequence_as(logs, leaves)
    results = keras.tree.map_structure(step_logs.to_tensor, results)
    if call is not None:
        call.logs = results
    return results


def _is_shared(strategy):
    """Whether several replicas share the rows of a step."""
    return hasattr(strategy.extended, "step_count") and strategy.num_replicas_in_sync > 1


# --- Losses, metrics, gradients ------------------------------------------------------------------


def _call_loss(call, loss, y_true, y_pred, sample_weight=None):
    share = shares.here()
    if share is None or not share.can_speak():
        return call(loss, y_true, y_pred, sample_weight)
    share.is_number = False
    result = call(loss, y_true, y_pred, sample_weight)
    if not share.is_number:
        return result
    whole_batch.say(loss, y_pred)
    with share.speaking():
        given = whole_batch.gather([y_true, y_pred, sample_weight], share)
    share.of_whole_batch = True
    try:
        return share.of_all(call(loss, *given))
    finally:
        share.of_whole_batch = False


def _reduce_weighted(reduce, values, *args, **kwargs):
    share = shares.here()
    if share is not None and keras.ops.ndim(values) == 0:
        share.is_number = True
    return reduce(values, *args, **kwargs)


def _unless_shared(scale, value):
    return scale(value) if shares.here() is None else value


def _reduce_values(reduce, values, sample_weight=None, reduction="sum_over_batch_size"):
    loss, share = reduce(values, sample_weight, reduction), shares.here()
    if share is None or share.of_whole_batch or values.shape.rank == 0:
        return loss
    if reduction == "sum":
        return share.undo(loss)  # all rows are summed, whoever has how many
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return loss * share.over_all(tf.cast(tf.reduce_sum(sample_weight), loss.dtype))
    return loss


def _apply_mask(apply, sample_weight, mask, dtype, reduction):
    weights, share = apply(sample_weight, mask, dtype, reduction), shares.here()
    if (
        share is None
        or share.of_whole_batch
        or mask is None
        or reduction not in ("mean", "sum_over_batch_size")
    ):
        return weights
    valid = tf.reduce_sum(tf.cast(mask, weights.dtype))
    return weights * share.over_all(valid)


def _update_mean(update, mean, values, sample_weight=None):
    share = shares.here()
    if share is None:
        return update(mean, values, sample_weight)
    values = keras.ops.convert_to_tensor(values)
    if values.shape.rank == 0:
        sample_weight = _weight_of_step(sample_weight, share)
        values = share.if_any(values)
    elif _is_count(sample_weight):
        sample_weight = share.undo(tf.cast(sample_weight, tf.float32))
    return update(mean, values, sample_weight)


def _update_sum(update, metric, values, sample_weight=None):
    share = shares.here()
    # A count, of rows say, is this replica's own; any other number is one for the step.
    if share is not None and keras.ops.ndim(values) == 0 and not _is_count(values):
        values = share.weigh(keras.ops.cast(values, metric.dtype))
    return update(metric, values, sample_weight)


def _weight_of_step(sample_weight, share):
    """How much a number for a step counts: as much as the rows, or once for all replicas."""
    if sample_weight is None:
        return share.weight
    if isinstance(sample_weight, tf.Tensor) or sample_weight == tf.get_static_value(share.rows):
        return sample_weight
    return share.weight * sample_weight


def _is_count(value):
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_integer


def _scale_loss(scale, optimizer, loss):
    share = shares.here()
    if share is None:
        return scale(optimizer, loss)
    share.weighed |= {id(part) for part in _parts(optimizer)}
    # Gradients of a loss that is not one number are of the sum of its elements.
    return scale(optimizer, share.weigh(loss) if loss.shape.rank == 0 else loss)


def _parts(optimizer):
    """The optimizers that make the updates of one that may be around others."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return _parts(inner)
    return getattr(optimizer, "optimizers", None) or [optimizer]


def _times(gradient, weight):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _times(gradient.values, weight)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)
