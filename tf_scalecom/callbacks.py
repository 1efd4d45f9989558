"""Keras callbacks for training on several workers.

All workers pass the same callbacks to `fit`. Those of Keras that look at the metrics do the same on
all workers, as the metrics are the same.
"""

import os

import keras
from absl import logging

from tf_scalecom.state import training_state
from tf_scalecom.state.backup import BackupError, BackupFolder
from tf_scalecom.state.backup_fit import fit_to_backup
from tf_scalecom.state.model_description import describe_model
from tf_scalecom.state.monitor import CompressionMonitor

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
    bit for bit as if there had been no interruption, as far as the data are the same: in a new
    process a dataset starts from its beginning, so its order in an epoch must not depend on the
    epochs before. With other numbers of workers or replicas, each replica starts with an equal
    part of the sum of all residuals.

    It holds all optimizers that are attributes of the model, or in lists, tuples and dictionaries
    there, also in models inside.

    A backup that cannot be written, e.g. to a full disk, is reported in the log of all workers;
    training goes on, and the backup before it stays. Only what this callback wrote is deleted.

    A folder belongs to one training at a time. After a crash the next one takes over at once on
    the same machine, elsewhere after 20 s without a sign of life of the one before.

    Args:
        backup_dir: folder for the backups, the same one for all workers, and for this training run
            alone. In `fit` it is checked that all see it.
        save_freq: "epoch", or a number of batches. After a restart, the epoch that was not finished
            starts again, with the weights of the backup.
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

    def on_train_begin(self, logs=None):
        extended = self.model.distribute_strategy.extended
        workers = getattr(extended, "workers", None)
        if workers is None and getattr(extended, "_num_workers", 1) > 1:
            raise ValueError(
                "BackupAndRestore: expected several workers to train under "
                f"tf_scalecom.MultiWorkerMirroredStrategy; received "
                f"{type(self.model.distribute_strategy).__name__}. Change the strategy."
            )
        self._folder = BackupFolder(
            self.backup_dir,
            rank=0 if workers is None else workers.rank,
            gather=(lambda value, _: [value]) if workers is None else workers.gather,
        )
        self._epoch = 0
        self._batches = 0
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
        self._epoch = epoch
        self._last_batch = -1

    def on_train_batch_end(self, batch, logs=None):
        # Counted by `batch`: with several steps per execution not every batch ends here.
        self._batches += batch - self._last_batch
        self._last_batch = batch
        if self.save_freq != "epoch" and self._batches >= self.save_freq:
            self._batches = 0
            self._save(self._epoch)

    def on_epoch_end(self, epoch, logs=None):
        if self.save_freq == "epoch":
            self._save(epoch + 1)

    def on_train_end(self, logs=None):
        # Keras keeps it for later calls to `fit`, which have nothing to do with this one.
        self.model._initial_epoch = None
        if self.delete_checkpoint:
            self._folder.delete()
        self._folder.release()

    def _save(self, epoch):
        meta = {
            "epoch": epoch,
            "model": self._model_description,
            **training_state.describe(self.model),
        }
        try:
            self._folder.save(training_state.read(self.model), meta)
        except BackupError as error:
            logging.error("tf_scalecom: training goes on without a new backup. %s", error)

    def _restore(self):
        backup = self._folder.latest()
        if backup is None:
            return
        like = fit_to_backup(self.model, self._model_description, backup, self.backup_dir)
        training_state.write(self.model, self._folder.load(backup, like))
        self.model._initial_epoch = backup["epoch"]


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
