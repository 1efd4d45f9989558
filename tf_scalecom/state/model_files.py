"""Model files on several workers: written whole by each, read without the others.

Keras and TensorFlow write a model's file in place, and know one process: of workers that save to
one path, as all do in `model.save("model.keras")`, pieces of several would make up the file. And a
model that is loaded in the strategy's scope would wait for the others with each variable, only to
take its value from the file. There is no hook for either, so `install` wraps the few functions that
all ways to save and load a model lead to.
"""

import functools
import os
from collections.abc import Callable

from tf_scalecom.base.whole_files import written_whole
from tf_scalecom.compat.keras_objects import (
    LiteRTExporter,
    h5_format,
    is_remote_path,
    saving_library,
)
from tf_scalecom.compat.tensorflow_runtime import saved_models

_loads = 0  # how deep in calls that load a model


@functools.cache
def install() -> None:
    """Wraps what saves and loads models in this process, from now on."""
    # Keras finds each of these in its module when it is called: wrapped there, wrapped everywhere.
    _wrap(saving_library, "save_model", _whole)  # `.keras`, and its unpacked form
    _wrap(saving_library, "save_weights_only", _whole)
    _wrap(h5_format, "save_model_to_hdf5", _whole_in_new_folder)
    _wrap(LiteRTExporter, "export", _whole)
    _wrap(saved_models, "save_and_return_nodes", _whole_in_new_folder)  # `export` too
    for module, load in (
        (saving_library, "_load_model_from_fileobj"),  # pickled models too
        (saving_library, "_load_model_from_dir"),
        (h5_format, "load_model_from_hdf5"),
    ):
        _wrap(module, load, _loading)


def loading() -> bool:
    """Whether a model is being loaded, whose variables take their values from a file."""
    return _loads > 0


def _wrap(module, name: str, wrapper: Callable) -> None:
    setattr(module, name, wrapper(getattr(module, name)))


def _whole(save, makes_folders=False):
    @functools.wraps(save)
    def save_whole(saved, path, *args, **kwargs):
        if not _can_be_renamed_to(path, makes_folders):
            return save(saved, path, *args, **kwargs)
        with written_whole(path) as aside:
            return save(saved, str(aside), *args, **kwargs)

    return save_whole


_whole_in_new_folder = functools.partial(_whole, makes_folders=True)


def _can_be_renamed_to(path, makes_folders):
    """Not so: open files; buckets, which Keras sends files to; devices; what is to be an error."""
    if not isinstance(path, (str, os.PathLike)) or is_remote_path(path):
        return False
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    if makes_folders:
        os.makedirs(folder, exist_ok=True)
    if os.path.isdir(path):
        return os.access(path, os.W_OK)
    if os.path.isfile(path):
        return os.access(path, os.W_OK) and os.access(folder, os.W_OK)
    return os.access(folder, os.W_OK) and not os.path.exists(path)


def _loading(load):
    @functools.wraps(load)
    def load_alone(*args, **kwargs):
        global _loads
        _loads += 1
        try:
            return load(*args, **kwargs)
        finally:
            _loads -= 1

    return load_alone
