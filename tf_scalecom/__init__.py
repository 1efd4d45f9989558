"""ScaleCom sparse gradient reduction for TensorFlow and Keras 3.

TensorFlow and Keras, which take seconds to import, come with the first name that needs them.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_scalecom import optimizer_by_name
from tf_scalecom.base import keras_back_end, random_generators
from tf_scalecom.base.after_import import after_import
from tf_scalecom.base.lazy_names import lazy_names
from tf_scalecom.version import __version__

if TYPE_CHECKING:
    from tf_scalecom import callbacks, methods, ops
    from tf_scalecom.compressed_optimizer import CompressedOptimizer
    from tf_scalecom.cross_device_ops import ScaleComAllReduce
    from tf_scalecom.optimizer import ScaleComOptimizer
    from tf_scalecom.recipes import recipe
    from tf_scalecom.strategy import MultiWorkerMirroredStrategy
    from tf_scalecom.wire.report import CompressionReport, CompressionRow
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CompressedOptimizer": "tf_scalecom.compressed_optimizer",
            "CompressionReport": "tf_scalecom.wire.report",
            "CompressionRow": "tf_scalecom.wire.report",
            "MultiWorkerMirroredStrategy": "tf_scalecom.strategy",
            "ScaleComAllReduce": "tf_scalecom.cross_device_ops",
            "ScaleComOptimizer": "tf_scalecom.optimizer",
            "callbacks": "tf_scalecom.callbacks",
            "methods": "tf_scalecom.methods",
            "ops": "tf_scalecom.ops",
            "recipe": "tf_scalecom.recipes",
        },
    )

__all__ = [
    "CompressedOptimizer",
    "CompressionReport",
    "CompressionRow",
    "MultiWorkerMirroredStrategy",
    "ScaleComAllReduce",
    "ScaleComOptimizer",
    "__version__",
    "callbacks",
    "methods",
    "ops",
    "recipe",
]


@contextlib.contextmanager
def _import_of_keras() -> Iterator[None]:
    keras_back_end.require_tensorflow()
    with random_generators.left_alone():  # a module that Keras imports draws something
        yield


# Before a script draws anything.
random_generators.start_from_launcher()
after_import("keras", optimizer_by_name.register, within=_import_of_keras)
