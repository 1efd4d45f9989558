"""ScaleCom sparse gradient reduction for TensorFlow and Keras 3."""

from tf_scalecom import callbacks, ops
from tf_scalecom.cross_device_ops import ScaleComAllReduce
from tf_scalecom.optimizer import ScaleComOptimizer
from tf_scalecom.strategy import MultiWorkerMirroredStrategy
from tf_scalecom.version import __version__
from tf_scalecom.wire.report import CompressionReport, CompressionRow

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
