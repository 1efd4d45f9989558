"""Where Keras's `fit`, `evaluate` and `predict` lead to this package, for its strategy's models.

Keras has no hook for it. Each is a method, wrapped once, when the first strategy is made; with
other strategies it does what it did.
"""

import functools
import itertools

import keras
import tensorflow as tf

from tf_scalecom.compat import keras_calls
from tf_scalecom.compat.hooks import wrap
from tf_scalecom.compat.keras_calls import innermost_call
from tf_scalecom.compat.keras_objects import seed_library
from tf_scalecom.compat.keras_trainer import (
    EpochIterator,
    Trainer,
    strategy_made_in,
)
from tf_scalecom.compat.tensorflow_distribute import input_library, is_default
from tf_scalecom.fit import data_position, first_batch, keras_steps, made_in_scope, replica_seeds
from tf_scalecom.fit.epochs import EndsWithLastWorker, share_out
from tf_scalecom.fit.rows import count_rows_of_optionals


@functools.cache
def install() -> None:
    """Has Keras call this package; later calls do nothing."""
    keras_calls.note()
    keras_steps.install()
    wrap(EpochIterator, "__init__", _make_epoch_iterator)
    wrap(EpochIterator, "_get_iterator", _iterate)
    wrap(EpochIterator, "_enumerate_iterator", data_position.steps_from_there)
    wrap(Trainer, "_maybe_symbolic_build", _build_for_data)
    wrap(Trainer, "_symbolic_build", _build_for_batch)
    wrap(input_library, "_calculate_replicas_with_values", _count_data)
    wrap(keras.random.SeedGenerator, "next", replica_seeds.next_seed)
    wrap(seed_library, "global_seed_generator", replica_seeds.global_generator)


class _SharesOut:
    """Stands for a strategy while Keras makes an epoch iterator, and knows whose data it gets."""

    def __init__(self, strategy, epoch_iterator):
        self._strategy, self._epoch_iterator = strategy, epoch_iterator

    def experimental_distribute_dataset(self, dataset):
        # Every worker is in the same call to fit, evaluate or predict, so it is safe to ask.
        workers = self._strategy.extended.workers
        dataset = share_out(self._epoch_iterator, dataset, workers)
        return self._strategy.experimental_distribute_dataset(dataset)


def _make_epoch_iterator(make, epoch_iterator, distribute_strategy=None, *args, **kwargs):
    strategy, place = distribute_strategy, distribute_strategy
    if _has_workers(strategy) and len(strategy.extended.workers.names) > 1:
        place = _SharesOut(strategy, epoch_iterator)
    make(epoch_iterator, place, *args, **kwargs)
    epoch_iterator._distribute_strategy = strategy
    call = innermost_call()
    if call is not None and call.epoch_iterator is None:  # else it is that of validation
        call.epoch_iterator = epoch_iterator
    if call is not None and call.name == "fit" and is_default(strategy):
        made_in_scope.look_at_fit_outside(call.model, strategy)


def _iterate(get, epoch_iterator):
    dataset = get(epoch_iterator)
    if isinstance(dataset, EndsWithLastWorker):
        return dataset.of_epoch(epoch_iterator)
    return dataset


def _build_for_data(build, model, iterator=None, data_batch=None):
    """Keras reads the first batch, to learn its shapes, and averages it over all replicas."""
    call = innermost_call()
    # A batch in place of an iterator is that of `train_on_batch`, e.g. in a callback of the call.
    if call is None or iterator is None:
        return build(model, iterator=iterator, data_batch=data_batch)
    with call.building():
        strategy = strategy_made_in(model)
        if _has_workers(strategy):
            iterator, data_batch = None, first_batch.read(iterator, strategy)
        return build(model, iterator=iterator, data_batch=data_batch)


def _build_for_batch(build, model, iterator=None, data_batch=None):
    strategy = strategy_made_in(model)
    if not _has_workers(strategy):
        return build(model, iterator=iterator, data_batch=data_batch)
    call = innermost_call()
    if call is not None and call.builds and call.name == "fit":
        strategy.extended.require_trains()
        made_in_scope.require_optimizer(getattr(model, "optimizer", None), strategy)
    first_batch.look_at(model, data_batch, strategy)
    return first_batch.build_if_possible(
        model, lambda: build(model, iterator=iterator, data_batch=data_batch)
    )


class _Counts:
    """Stands for a strategy while the replicas that have data, and their rows, are counted."""

    def __init__(self, strategy, rows):
        self._strategy, self._rows = strategy, rows
        self.extended = self

    def _in_multi_worker_mode(self):
        return True  # one worker's own count is a sum, too

    def reduce(self, reduce_op, replicas, axis):
        count = self._strategy.extended.step_count
        total = count.packed(replicas, self._rows)
        if len(self._strategy.extended.workers.names) > 1:
            total = self._strategy.reduce(reduce_op, total, axis)
        return count.unpacked(total)


def _count_data(count, strategy, input_workers, optional_list):
    if _has_workers(strategy) and strategy.num_replicas_in_sync > 1:
        strategy = _Counts(strategy, count_rows_of_optionals(itertools.chain(*optional_list)))
    return count(strategy, input_workers, optional_list)


def _has_workers(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether a strategy is this package's."""
    return hasattr(getattr(strategy, "extended", None), "workers")
