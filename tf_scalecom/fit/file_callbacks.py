"""Keras's callbacks that write files know one process: on several, one of them may write."""

import os

import keras
from absl import logging

from tf_scalecom.workers.workers import Workers


def one_writer_per_file(callbacks: keras.callbacks.CallbackList, workers: Workers) -> None:
    """Leaves each checkpoint file to the first worker that names it.

    Workers that write the same file at the same time spoil it. Where their paths differ, each
    writes its own.

    Args:
        callbacks: those of a call to `fit`.
        workers: those that call `fit` together.

    Raises:
        ValueError: on all workers, if one of them has Keras's `BackupAndRestore`.
    """
    checkpoints = [c for c in callbacks.callbacks if isinstance(c, keras.callbacks.ModelCheckpoint)]
    backups = any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks.callbacks)
    own = [os.path.abspath(checkpoint.filepath) for checkpoint in checkpoints]
    everyone = workers.gather([own, backups], "paths of checkpoints")
    if any(backups for _, backups in everyone):
        raise ValueError(
            "fit: expected no keras.callbacks.BackupAndRestore on several workers, received one: "
            "workers would write and delete each other's files. Use "
            "tf_scalecom.callbacks.BackupAndRestore."
        )
    taken = {path for paths, _ in everyone[: workers.rank] for path in paths}
    for checkpoint, path in zip(checkpoints, own, strict=True):
        if path in taken:
            logging.info("tf_scalecom: %s is written by another worker.", path)
            checkpoint._save_model = lambda *args, **kwargs: None
