"""Keras callbacks for training on several workers.

All workers pass the same callbacks to `fit`. Those of Keras that look at the metrics do the same on
all workers, as the metrics are the same.
"""

import os

import keras
import numpy as np
from absl import logging

from tf_scalecom.compat.keras_calls import innermost_call
from tf_scalecom.fit.data_position import DataPosition
from tf_scalecom.state import training_state
from tf_scalecom.state.backup import BackupError, BackupFolder
from tf_scalecom.state.backup_fit import fit_to_backup
from tf_scalecom.state.model_description import describe_model
from tf_scalecom.state.monitor import CompressionMonitor
from tf_scalecom.workers.agreement import differences

__all__ = ["BackupAndRestore", "CompressionMonitor", "chief_only"]

# Callbacks that change the course of training, which must be the same on all workers.
_CHANGE_TRAINING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
    keras.callbacks.TerminateOnNaN,
)


class BackupAndRestore(keras.callbacks.Callback):
    """Backs up training on several workers, and goes on from the backup after a restart.

    Like `keras.callbacks.BackupAndRestore`, which knows one process only. Every worker writes what
    it alone holds, residuals above all; the chief the rest. A restart with the same workers goes on
    bit for bit as if there had been no interruption, at the next batch, as far as the data are the
    same: docs/training.md says which are. With other numbers of workers or replicas, each replica
    starts with an equal part of the sum of all residuals, and the epoch starts again.

    Files are written while training goes on; a step waits for a copy in memory alone. Where SIGTERM
    ends `fit` on all workers, a backup is made first.

    It holds all optimizers that are attributes of the model, or in lists, tuples and dictionaries
    there, also in models inside.

    A backup that cannot be written, e.g. to a full disk, is reported in the log of all workers;
    training goes on, and the backup before it stays. Only what this callback wrote is deleted.

    A folder belongs to one training at a time. After a crash the next one takes over at once on
    the same machine, elsewhere after 20 s without a sign of life of the one before.

    Args:
        backup_dir: folder for the backups, the same one for all workers, and for this training run
            alone. In `fit` it is checked that all see it.
        save_freq: "epoch", or a number of batches.
        delete_checkpoint: whether to delete the backup once `fit` is through.

    Raises:
        OSError: in `fit`, if the folder is not shared, not writable or another training's, or the
            backup in it cannot be read.
        ValueError: an argument is out of its range; in `fit`, if the backup is of a model with
            other variables, or of optimizers of other classes.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike,
        save_freq: str | int = "epoch",
        delete_checkpoint: bool = True,
    ):
        super().__init__()
        if not backup_dir:
            raise ValueError(
                f"BackupAndRestore: expected `backup_dir` to name a folder; received "
                f"{backup_dir!r}. Pass one that all workers share."
            )
        is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
        if save_freq != "epoch" and not is_count:
            raise ValueError(
                "BackupAndRestore: expected `save_freq` to be 'epoch' or a number of batches >= 1; "
                f"received {save_freq!r}. Correct it."
            )
        self.backup_dir = backup_dir
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self._position = DataPosition(None)

    def on_train_begin(self, logs=None):
        extended = self.model.distribute_strategy.extended
        workers = getattr(extended, "workers", None)
        if workers is None and getattr(extended, "_num_workers", 1) > 1:
            raise ValueError(
                "BackupAndRestore: expected several workers to train under "
                f"tf_scalecom.MultiWorkerMirroredStrategy; received "
                f"{type(self.model.distribute_strategy).__name__}. Change the strategy."
            )
        self._gather = (lambda value, _: [value]) if workers is None else workers.gather
        rank = 0 if workers is None else workers.rank
        self._folder = BackupFolder(self.backup_dir, rank, self._gather)
        self._call = innermost_call()
        self._position = DataPosition(self._call and self._call.epoch_iterator)
        self._batches = 0  # since the last backup
        self._reach(0, 0)
        self._restored = None
        self._folder.claim()
        try:
            if workers is not None:  # or some would build and restore what others do not
                workers.require_alike("the state to back up", training_state.describe(self.model))
            training_state.build_optimizer(self.model)  # without variables, nothing to restore
            self._model_description = describe_model(self.model)
            self._restore()
        except BaseException:
            self._folder.release()
            raise

    def on_epoch_begin(self, epoch, logs=None):
        self._folder.check_claim()
        if self._restored is None:
            self._reach(epoch, 0)
            return
        # Keras has just set the metrics to 0.
        training_state.write_metrics(self.model, self._restored)
        self._restored = None

    def on_train_batch_end(self, batch, logs=None):
        # Counted by `batch`: with several steps per execution not every batch ends here.
        self._batches += batch + 1 - self._batch
        self._reach(self._epoch, batch + 1)
        if self.save_freq != "epoch" and self._batches >= self.save_freq:
            if self._position.describe():
                self.model._get_metrics_result_or_logs(logs)  # notes the logs in the call
            self._begin_to_save()
        else:
            self._write(self._folder.go_on)

    def on_test_begin(self, logs=None):
        if self._position.describe():  # Keras then sets the metrics to 0
            self._metrics = training_state.read_metrics(self.model)

    def on_epoch_end(self, epoch, logs=None):
        self._reach(epoch + 1, 0)
        if self.save_freq == "epoch":
            self._begin_to_save()

    def on_asked_to_end(self):
        """Backs up once more before training ends, on all workers, as SIGTERM asks."""
        self._write(self._folder.finish)
        if self._batch and self._position.obstacle and self.save_freq == "epoch":
            logging.warning(
                "tf_scalecom: no backup is made in the middle of an epoch, as a restart could not "
                "go on there: %s.",
                self._position.obstacle,
            )
        elif self._saved != (self._epoch, self._batch):
            self._begin_to_save()
            self._write(self._folder.finish)
        self._folder.release()

    def on_train_end(self, logs=None):
        # Keras keeps it for later calls to `fit`, which have nothing to do with this one.
        self.model._initial_epoch = None
        self._write(self._folder.finish)
        if self.delete_checkpoint:
            self._folder.delete()
        self._folder.release()

    def _reach(self, epoch, batch):
        """Notes how far training has come: the epoch, and batches of it that were trained on."""
        self._epoch, self._batch = epoch, batch
        self._position.reach(batch)
        self._metrics = None  # those of the model

    def _begin_to_save(self):
        self._write(self._folder.finish)
        state = training_state.read(self.model)
        meta = {
            "epoch": self._epoch,
            "batch": self._batch,
            "position": self._position.describe(),
            "model": self._model_description,
            **training_state.describe(self.model),
        }
        if self._batch and meta["position"]:
            state |= self._metrics or training_state.read_metrics(self.model)
            meta["metrics"] = training_state.describe_metrics(self.model)
            meta["logs"] = _numbers(self._call.logs)
        self._batches = 0
        self._saved = self._epoch, self._batch
        self._write(lambda: self._folder.begin(state, meta))

    def _write(self, go_on):
        try:
            go_on()
        except BackupError as error:
            self._saved = None
            logging.error("tf_scalecom: training goes on without a new backup. %s", error)

    def _restore(self):
        self._saved = None
        backup = self._folder.latest()
        if backup is None:
            return
        like = fit_to_backup(self.model, self._model_description, backup, self.backup_dir)
        epoch, batch = backup["epoch"], backup.get("batch", 0)
        obstacles = self._obstacles(backup)
        if batch and not obstacles:
            like = {**like, **training_state.read_metrics(self.model)}
        state = self._folder.load(backup, like)
        training_state.write(self.model, state)
        self.model._initial_epoch = epoch
        if not obstacles:
            self._position.go_on(backup["position"])
            self._saved = epoch, batch
            if batch:
                self._epoch, self._batch, self._restored = epoch, batch, state
                self._call.logs = {name: np.float64(v) for name, v in backup["logs"].items()}
        elif batch:
            logging.warning(
                "tf_scalecom: training goes on from %s with epoch %d from its start, not with its "
                "batch %d: %s.",
                self.backup_dir,
                epoch + 1,
                batch + 1,
                "; ".join(obstacles),
            )

    def _obstacles(self, backup):
        """What keeps any worker from going on at the backup's place in the data."""
        position = backup.get("position")
        if position is None:
            obstacles = [self._position.obstacle or "the backup does not say where its data were"]
        else:
            obstacles = self._position.differences(position)
            if backup["batch"]:
                metrics = [backup["metrics"], training_state.describe_metrics(self.model)]
                obstacles += differences(metrics, ("the backup", "this program"))
        return next(filter(None, self._gather(obstacles, "where to go on")), [])


def _numbers(logs):
    """Those of an epoch's logs that are one number."""
    arrays = {name: np.asarray(value) for name, value in logs.items()}
    return {name: float(a) for name, a in arrays.items() if a.size == 1 and a.dtype.kind in "biuf"}


def chief_only(callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
    """A callback that runs on the chief, the first worker, alone.

    For callbacks that only write: logs, reports, `ModelCheckpoint`. It must not do what all
    workers have to do together, such as evaluating the model.

    Args:
        callback: the callback.

    Raises:
        ValueError: It changes the course of training, which has to be the same on all workers.

    Example:
        ```
        model.fit(data, callbacks=[chief_only(keras.callbacks.TensorBoard("logs"))])
        ```
    """
    if isinstance(callback, (*_CHANGE_TRAINING, BackupAndRestore)):
        raise ValueError(
            "chief_only: expected a callback that only writes; received "
            f"{type(callback).__name__}, which changes the course of training. Pass it to `fit` on "
            "all workers as it is."
        )
    return _ChiefOnly(callback)


class _ChiefOnly(keras.callbacks.CallbackList):
    """A list of one callback on the chief, of none elsewhere."""

    def __init__(self, callback):
        super().__init__([callback])

    def set_model(self, model):
        if model and not model.distribute_strategy.extended.should_checkpoint:
            self.callbacks = []
        super().set_model(model)
