"""The methods of reduction by which `CompressedOptimizer` trains.

Others, for comparison, are in the simulator alone (docs/simulate.md).
"""

from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.owners import OwnersTopK
from tf_scalecom.reduction.power_sgd import PowerSGD
from tf_scalecom.reduction.shares import SharesTopK

__all__ = ["CltK", "OwnersTopK", "PowerSGD", "SharesTopK"]
