"""ScaleCom sparse gradient reduction for TensorFlow and Keras 3."""

from tf_scalecom import ops
from tf_scalecom.cross_device_ops import ScaleComAllReduce
from tf_scalecom.optimizer import ScaleComOptimizer
from tf_scalecom.report import CompressionReport, CompressionRow
from tf_scalecom.strategy import MultiWorkerMirroredStrategy

__all__ = [
    "CompressionReport",
    "CompressionRow",
    "MultiWorkerMirroredStrategy",
    "ScaleComAllReduce",
    "ScaleComOptimizer",
    "ops",
]
