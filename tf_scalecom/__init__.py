"""ScaleCom sparse gradient reduction for TensorFlow and Keras 3."""

from tf_scalecom.base import keras_back_end

keras_back_end.require_tensorflow()  # before anything imports Keras

from tf_scalecom import callbacks, ops  # noqa: E402
from tf_scalecom.cross_device_ops import ScaleComAllReduce  # noqa: E402
from tf_scalecom.optimizer import ScaleComOptimizer  # noqa: E402
from tf_scalecom.strategy import MultiWorkerMirroredStrategy  # noqa: E402
from tf_scalecom.version import __version__  # noqa: E402
from tf_scalecom.wire.report import CompressionReport, CompressionRow  # noqa: E402

__all__ = [
    "CompressionReport",
    "CompressionRow",
    "MultiWorkerMirroredStrategy",
    "ScaleComAllReduce",
    "ScaleComOptimizer",
    "__version__",
    "callbacks",
    "ops",
]
