"""A model with all kinds of state, trained with backups on a cluster of workers."""

import shutil

import keras
import tensorflow as tf
from digits import digest, digits

import tf_scalecom as sc

STEPS = 10  # of an epoch
BATCH = 8


def build(
    strategy,
    units=64,
    warmup_steps=5,
    beta=0.3,
    hierarchical=False,
    warmup="dense",
    method="CltK",
    **of_method,
):
    """With all kinds of state: slots, residuals, moving averages, random seeds."""
    if method != "PowerSGD":
        of_method = {"compression_ratio": 100, "beta": beta, **of_method}
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(units, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2, seed=3),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            sc.CompressedOptimizer(
                keras.optimizers.SGD(0.05, momentum=0.9),
                getattr(sc.methods, method)(**of_method),
                warmup_steps=warmup_steps,
                hierarchical=hierarchical,
                warmup=warmup,
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def is_per_replica(variable):
    return getattr(variable, "per_replica", False)


class Residuals(keras.callbacks.Callback):
    """Keeps the residuals as they are when training starts; comes after the restore."""

    def on_train_begin(self, logs=None):
        self.at_start = self.model.optimizer.residuals


def copy_backup(strategy, backups, folder, kept):
    """Once all of it is written."""
    backups._folder.finish()
    if strategy.extended._id_in_cluster == 0:
        shutil.copytree(folder, kept)


def train(strategy, epochs, folder=None, callbacks=(), kept=None, shuffled=False, **arguments):
    """Trains on this worker's own data; what comes out is equal to the bit or it is not.

    Args:
        kept: where the folder is copied to after the first epoch.
        shuffled: in an order without a seed of its own.
    """
    rank = strategy.extended._id_in_cluster
    local = len(strategy.extended.worker_devices)
    x, y = digits(STEPS * BATCH * local, seed=rank)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    rows = rows.shuffle(len(x)) if shuffled else rows
    data = strategy.distribute_datasets_from_function(lambda _: rows.batch(BATCH))
    model = build(strategy, **arguments)
    seen = Residuals()
    callbacks = [seen, *callbacks]
    if folder:
        backups = sc.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        callbacks.insert(0, backups)
    if kept:

        def keep(epoch, logs):
            if epoch == 1:
                copy_backup(strategy, backups, folder, kept)

        callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=keep))
    history = model.fit(data, epochs=epochs, callbacks=callbacks, verbose=0)
    own = [part.tobytes() for parts in model.optimizer.residuals.values() for part in parts]
    return {
        "weights": digest(model.trainable_variables),
        "own": [*own, digest(model.non_trainable_variables)],
        # What a method keeps alike on all, such as PowerSGD's queries.
        "shared": digest([v for v in model.optimizer._variables if not is_per_replica(v)]),
        "slots": digest(model.optimizer.inner_optimizer.variables),
        "epochs": history.epoch,
        "residuals_at_start": seen.at_start,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def restore_into(strategy, folder, arguments):
    """The error, and what was logged."""
    from absl import logging

    messages = []

    class Handler(logging.PythonHandler):
        def emit(self, record):
            messages.append(record.getMessage())

    handler = Handler()
    logging.get_absl_logger().addHandler(handler)
    try:
        train(strategy, 1, folder, **arguments)
    except (OSError, ValueError) as error:
        return str(error), messages
    finally:
        logging.get_absl_logger().removeHandler(handler)
    return None, messages
