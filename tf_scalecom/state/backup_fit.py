"""Whether a backup is one of this model and these optimizers: an error, a warning, or neither."""

import os
from collections.abc import Mapping, Sequence

import keras
from absl import logging

from tf_scalecom.state import training_state
from tf_scalecom.state.training_state import State
from tf_scalecom.workers.agreement import check_alike, differences, optimizer_classes, shortened

_NAMES = ("the backup", "this program")


def fit_to_backup(
    model: keras.Model, model_description: Mapping, backup: Mapping, folder: str | os.PathLike
) -> State:
    """Prepares a model for a backup: its optimizers are then built as they were.

    Args:
        model: compiled and built.
        model_description: what `describe_model` returns.
        backup: its metadata, as `BackupFolder.latest` returns them.
        folder: where it is, for the messages.

    Returns:
        The outline of what is to be restored.

    Raises:
        ValueError: Its values would mean something else here: other variables, or another class
            of optimizer.
    """
    held = backup["optimizers"]
    now = training_state.describe(model)
    new = [path for path in now["optimizers"] if path not in held]
    check_alike(
        f"Optimizers of the model and of the backup in {folder}",
        [_classes(held), _classes(now["optimizers"], but=new)],
        _NAMES,
        "Use those of the backup, whose state means nothing to others, or delete the backups "
        "there to start from the beginning.",
    )
    _check_variables("model.", backup, now, new, folder)  # those that optimizers are built for
    training_state.build_as_described(model, backup)
    now = training_state.describe(model)
    _check_variables("", backup, now, new, folder)
    if new:
        logging.warning(
            "tf_scalecom: training goes on from %s, which does not hold the optimizers %s: they "
            "begin anew.",
            folder,
            new,
        )
    configs = [
        {path: optimizer["config"] for path, optimizer in optimizers.items() if path in held}
        for optimizers in (held, now["optimizers"])
    ]
    _warn_of_changes(folder, "other hyper-parameters", configs)
    if "model" in backup:
        models = [backup["model"], model_description]
        _warn_of_changes(folder, "another model, whose variables have the same shapes", models)
    state = training_state.outline(model)
    return {name: kept for name, kept in state.items() if name in backup["variables"]}


def _classes(optimizers: Mapping, but: Sequence[str] = ()):
    """Path of an optimizer -> e.g. "ScaleComOptimizer of SGD"."""
    return {
        path: " of ".join(optimizer_classes(optimizer["config"]))
        for path, optimizer in optimizers.items()
        if path not in but
    }


def _check_variables(prefix, backup, now, new, folder):
    """Raises unless the variables whose names begin so are those of the backup."""
    then = {n: fields for n, fields in backup["variables"].items() if n.startswith(prefix)}
    here = {
        # Only what the backup says of them: one of format 1 says nothing of roles.
        name: {key: fields[key] for key in then.get(name, fields) if key in fields}
        for name, fields in now["variables"].items()
        if name.startswith(prefix)
        and not any(training_state.belongs_to(name, path) for path in new)
    }
    check_alike(
        f"Variables of the model and of the backup in {folder}",
        [then, here],
        _NAMES,
        "Build the model as it was, or delete the backups there to start from the beginning.",
    )


def _warn_of_changes(folder, what, descriptions):
    changes = shortened(differences(descriptions, _NAMES))
    if changes:
        logging.warning(
            "tf_scalecom: training goes on from %s with %s: %s.", folder, what, "; ".join(changes)
        )
