"""A callback that stops training on one worker alone stops all of them, in the same step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc


class StopAt(keras.callbacks.Callback):
    """Asks to stop after a batch, or after an epoch."""

    def __init__(self, batch=None, epoch=None):
        super().__init__()
        self.batches = 0
        self._batch = batch
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == self._batch:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._epoch:
            self.model.stop_training = True


def fit_and_stop(
    strategy, stop, *, length, steps_per_execution=1, run_eagerly=False, validate=False, **arguments
):
    """Trains; worker 1 alone is asked to stop. Returns epochs begun, batches seen, weights."""
    rank = strategy.extended._id_in_cluster
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(200)])
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), compression_ratio=10)
        model.compile(
            optimizer, "mse", steps_per_execution=steps_per_execution, run_eagerly=run_eagerly
        )
    rows = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
    rows = tf.data.Dataset.from_tensors((rows, rows[:, :1])).repeat(length)
    callback = StopAt(**stop if rank == 1 else {})
    if validate:
        arguments["validation_data"] = rows.take(4)
    history = model.fit(rows, epochs=5, verbose=0, callbacks=[callback], **arguments)
    assert model.stop_training
    assert model.evaluate(rows.take(4), verbose=0) < 10, "the vote against data is over"
    return len(history.epoch), callback.batches, [w.numpy().tolist() for w in model.weights]


@pytest.mark.parametrize(
    ("stop", "arguments", "epochs", "batches"),
    [
        ({"epoch": 1}, {"length": 6}, 2, 12),
        ({"batch": 9}, {"length": 6}, 2, 9),
        ({"batch": 6}, {"length": 6}, 1, 6),  # the last of an epoch
        ({"batch": 3}, {"length": 24, "steps_per_execution": 2}, 1, 3),
        ({"batch": 3}, {"length": None, "steps_per_epoch": 8}, 1, 3),
        ({"batch": 3}, {"length": 12, "validate": True}, 1, 3),
        ({"batch": 3}, {"length": 12, "run_eagerly": True}, 1, 3),
    ],
)
def test_all_workers_stop_in_the_step_in_which_one_is_asked_to(
    cluster, stop, arguments, epochs, batches
):
    first, second = cluster(2).run(fit_and_stop, stop, **arguments)
    assert first == second
    assert first[:2] == (epochs, batches)


class StopEarly(keras.callbacks.Callback):
    """Asks to stop evaluating, or predicting, after a batch."""

    def __init__(self, batch=None):
        super().__init__()
        self.batches = 0
        self._batch = batch

    def _stop(self, flag):
        self.batches += 1
        if self.batches == self._batch:
            setattr(self.model, flag, True)

    def on_test_batch_end(self, batch, logs=None):
        self._stop("stop_evaluating")

    def on_predict_batch_end(self, batch, logs=None):
        self._stop("stop_predicting")


def stop_elsewhere(strategy, *, length, steps_per_execution=1, steps=None):
    """Worker 1 alone is asked to stop. Returns batches seen, by call, and what came of it."""
    batch = 2 if strategy.extended._id_in_cluster == 1 else None
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    rows = tf.data.Dataset.from_tensors((tf.ones([4, 8]), tf.ones([4, 1]))).repeat(length)
    callbacks = [StopEarly(batch) for _ in range(3)]
    losses = model.evaluate(rows, steps=steps, verbose=0, callbacks=callbacks[:1])
    assert model.stop_evaluating
    predicted = model.predict(rows, steps=steps, verbose=0, callbacks=callbacks[1:2])
    assert model.stop_predicting
    history = model.fit(
        rows,
        steps_per_epoch=2,
        epochs=2,
        validation_data=rows,
        validation_steps=steps,
        verbose=0,
        callbacks=callbacks[2:],
    ).history
    seen = [callback.batches for callback in callbacks]
    # The second validation is whole.
    return seen, len(predicted), losses, history


@pytest.mark.parametrize(
    "arguments",
    [{"length": 6}, {"length": None, "steps": 6}, {"length": 12, "steps_per_execution": 2}],
)
def test_all_workers_stop_evaluating_and_predicting_together(cluster, arguments):
    first, second = cluster(2).run(stop_elsewhere, **arguments)
    assert first == second
    rows = 2 * 4 * arguments.get("steps_per_execution", 1)
    assert first[:2] == ([2, 2, 2 + 6], rows)


def fit_unlike(strategy, *, lengths=(6, 6), epochs=(1, 1), frequencies=(1, 1), executions=(1, 1)):
    """Trains with what differs between the two workers; returns what `fit` has against it."""
    rank = strategy.extended._id_in_cluster
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=executions[rank])
    rows = tf.data.Dataset.from_tensors((tf.ones([8, 8]), tf.ones([8, 1]))).repeat(lengths[rank])
    arguments = {
        "epochs": epochs[rank],
        "validation_data": rows.take(1),
        "validation_freq": frequencies[rank],
    }
    with pytest.raises(ValueError, match="expected no difference") as error:
        model.fit(rows, steps_per_epoch=4, verbose=0, **arguments)
    return str(error.value)


def test_workers_that_would_wait_for_each_other_are_refused(cluster):
    for said in cluster(2).run(fit_unlike, lengths=(6, None)):
        assert "length: 'finite' (worker 0), 'infinite (`repeat()`)' (worker 1)" in said
    for said in cluster(2).run(fit_unlike, epochs=(2, 3)):
        assert "epochs: 2 (worker 0), 3 (worker 1)" in said
    for said in cluster(2).run(fit_unlike, frequencies=(1, 2)):
        assert "validation_freq: 1 (worker 0), 2 (worker 1)" in said
    for said in cluster(2).run(fit_unlike, executions=(1, 2)):
        assert "steps_per_execution: 1 (worker 0), 2 (worker 1)" in said
