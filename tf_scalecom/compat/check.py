"""The one check of TensorFlow and Keras, when the first part of the package needs them."""

import importlib
import warnings

from tf_scalecom.base import keras_back_end
from tf_scalecom.compat import declared
from tf_scalecom.compat.versions import TESTED, installed, is_tested

_TABLES = (
    "keras_objects",
    "keras_trainer",
    "tensorflow_data",
    "tensorflow_distribute",
    "tensorflow_runtime",
)


def check() -> None:
    """Looks for all that is private and needed.

    Raises:
        ImportError: Something of it is missing, or Keras has another back end.
    """
    keras_back_end.require_tensorflow()
    for table in _TABLES:
        importlib.import_module(f"tf_scalecom.compat.{table}")
    received = " and ".join(f"{package} {installed(package)}" for package in TESTED)
    tested = " and ".join(f"{package}{versions}" for package, versions in TESTED.items())
    if declared.missing:
        raise ImportError(
            f"tf_scalecom: expected {tested}, whose private parts it builds on; received "
            f"{received}, without\n  "
            + "\n  ".join(declared.missing)
            + "\nInstall versions that are tested: pip install "
            + " ".join(f"'{package}{versions}'" for package, versions in TESTED.items())
        )
    if not all(is_tested(package, installed(package)) for package in TESTED):
        warnings.warn(
            f"tf_scalecom: expected {tested}, which are tested; received {received}. All private "
            "parts that it needs are there, but may do something else: install tested versions, "
            "or look closely at the results.",
            stacklevel=2,
        )
