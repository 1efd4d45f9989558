"""A training with data of many kinds, and what is left of it after a batch.

It ends there, by an error or by SIGTERM; or its backup is copied and it goes on.
"""

import functools
import os
import random
import signal

import keras
import tensorflow as tf
from backed_up_training import copy_backup
from digits import digest, digits

import tf_scalecom as sc

ROWS, BATCH, STEPS = 44, 8, 6  # of an epoch, the last one a partial batch
EPOCHS, INTERRUPTED_EPOCH = 3, 1


class Batches(keras.utils.PyDataset):
    """Notes which batches it is asked for."""

    def __init__(self, x, y, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.asked_for = x, y, []

    @property
    def num_batches(self):
        return STEPS

    def __getitem__(self, index):
        self.asked_for.append(index)
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


class Endless(Batches):
    """Without a last batch."""

    num_batches = None

    def __getitem__(self, index):
        return super().__getitem__(index % STEPS)


def pairs(rank=None, steps=STEPS):
    x, y = digits(steps * BATCH if rank is not None else ROWS, seed=rank or 0)
    return tf.data.Dataset.from_tensor_slices((x, y))


def of_each(rank, strategy):
    """Each worker has data of its own, the second one more of them."""
    return strategy.distribute_datasets_from_function(
        lambda _: pairs(rank, STEPS + rank).shuffle(ROWS, seed=5).batch(BATCH)
    )


def arrays(*_, **arguments):
    x, y = digits(ROWS)
    return {"x": x, "y": y, "batch_size": BATCH, **arguments}


# What each kind gives to `fit`; without a seed where the package has an order of its own.
DATA = {
    "arrays": arrays,
    "arrays, by batch": lambda *_: arrays(shuffle="batch"),
    "arrays, validated": lambda *_: arrays(validation_data=digits(BATCH, seed=7)),
    "arrays, half in each epoch": lambda *_: arrays(steps_per_epoch=3),
    "dataset": lambda *_: {"x": pairs().shuffle(ROWS, seed=5).batch(BATCH)},
    "repeat": lambda *_: {
        "x": pairs().shuffle(ROWS, seed=5).batch(BATCH).repeat(),
        "steps_per_epoch": 4,
    },
    "of each": lambda *given: {"x": of_each(*given)},
    "PyDataset": lambda *_: {"x": Batches(*digits(ROWS))},
    "PyDataset, threads": lambda *_: {"x": Batches(*digits(ROWS), workers=2)},
    "PyDataset, endless": lambda *_: {"x": Endless(*digits(ROWS)), "steps_per_epoch": 4},
    "generator": lambda *_: {
        "x": (batch for _ in range(EPOCHS) for batch in pairs().batch(BATCH)),
        "steps_per_epoch": STEPS,
    },
}


class Interrupted(Exception):
    pass


class After(keras.callbacks.Callback):
    """Does something after a batch of the interrupted epoch."""

    def __init__(self, batch, action):
        super().__init__()
        self._batch, self._action = batch, action

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self._epoch, batch) == (INTERRUPTED_EPOCH, self._batch):
            self._action()


class Ask(keras.callbacks.Callback):
    """Asks one worker to end when a method is called in the interrupted epoch."""

    def __init__(self, when, batch=None):
        super().__init__()
        self._batch = batch
        setattr(self, when, self._ask)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def _ask(self, batch=None, logs=None):
        if self._epoch == INTERRUPTED_EPOCH and self._batch in (None, batch):
            os.kill(os.getpid(), signal.SIGTERM)


class Seen(keras.callbacks.Callback):
    """Steps that callbacks saw, by epoch."""

    def on_train_begin(self, logs=None):
        self.steps = {}

    def on_epoch_begin(self, epoch, logs=None):
        self.steps[epoch] = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps[self._epoch()].append(batch)

    def _epoch(self):
        return max(self.steps)


def build(strategy, **arguments):
    """Without TensorFlow's seed afterwards, but with the same weights and masks."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2, seed=3),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            sc.ScaleComOptimizer(
                keras.optimizers.SGD(0.05, momentum=0.9), compression_ratio=20, beta=0.3
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **arguments,
        )
    tf.random.set_seed(None)
    return model


def fit(
    strategy,
    kind,
    folder=None,
    *,
    batch=None,
    kept=None,
    ask=None,
    save_freq="epoch",
    seed=0,
    **compiled,
):
    """Trains, to the end or to the interruption; what comes out is equal to the bit or it is not.

    Args:
        batch: after which an error ends training.
        kept: where a copy of the folder is made after that batch, in place of the error.
        ask: when the second worker is asked to end, as for `Ask`.
        seed: of Python's generator, from which comes the order of arrays and `PyDataset`s.
    """
    rank = strategy.extended._id_in_cluster
    model = build(strategy, **compiled)
    data = DATA[kind](rank, strategy)
    random.seed(seed)
    seen, callbacks = Seen(), []
    if folder:
        callbacks.append(sc.callbacks.BackupAndRestore(folder, save_freq, delete_checkpoint=False))
    if batch is not None:
        backups = callbacks[0]

        def interrupt():
            backups._folder.finish()
            raise Interrupted

        keep = functools.partial(copy_backup, strategy, backups, folder, kept)
        callbacks.append(After(batch, keep if kept else interrupt))
    if ask and rank == 1:
        callbacks.append(Ask(*ask))
    history = keras.callbacks.History()
    try:
        model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=[*callbacks, seen, history])
    except Interrupted:
        return None
    except SystemExit as end:
        return end.code
    return {
        "weights": digest(model.trainable_variables),
        "moving": digest(model.non_trainable_variables),
        "residuals": [p.tobytes() for ps in model.optimizer.residuals.values() for p in ps],
        "slots": digest(model.optimizer.inner_optimizer.variables),
        "steps": seen.steps,
        "logs": {
            e: {n: v[i] for n, v in history.history.items()} for i, e in enumerate(history.epoch)
        },
        "asked_for": getattr(data["x"], "asked_for", None),
    }
