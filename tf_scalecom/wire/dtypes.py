"""The dtypes of gradients and of values on the wire: all that is known of them, in one table.

A dtype that is not here is an error, never taken for another one.
"""

from typing import NamedTuple


class Dtype(NamedTuple):
    """What the plan knows of a dtype.

    Attributes:
        bytes: size of one element, in memory and on the wire.
        significant_bits: of a float, the implicit one included; of an integer that carries values,
            those of its magnitude; 0 for all others.
        compressible: whether gradients of it may travel compressed; otherwise they travel dense.
        carries_values: whether kept values may travel in it.
        scaled_below: where its range is so small that values travel with a scale: above what they
            are by it; else 0.
    """

    bytes: int
    significant_bits: int = 0
    compressible: bool = False
    carries_values: bool = False
    scaled_below: float = 0.0

    @property
    def is_narrow(self) -> bool:
        """Whether values of it have fewer than 32 bits."""
        return self.bytes < 4

    @property
    def is_scaled(self) -> bool:
        """Whether values travel with a scale."""
        return self.scaled_below > 0


DTYPES = {
    "float32": Dtype(4, 24, compressible=True, carries_values=True),
    "bfloat16": Dtype(2, 8, compressible=True, carries_values=True),
    "float16": Dtype(2, 11, compressible=True, carries_values=True, scaled_below=2.0**15),
    "float64": Dtype(8, 53, compressible=True),
    "float8_e4m3fn": Dtype(1, 4),
    "float8_e5m2": Dtype(1, 3),
    "complex64": Dtype(8),
    "complex128": Dtype(16),
    "int8": Dtype(1, 7, carries_values=True, scaled_below=2.0**7),
    "int16": Dtype(2),
    "int32": Dtype(4),
    "int64": Dtype(8),
    "uint8": Dtype(1),
    "uint16": Dtype(2),
    "uint32": Dtype(4),
    "uint64": Dtype(8),
    "bool": Dtype(1),
}

# Choices of `value_dtype`.
VALUE_DTYPES = tuple(name for name, dtype in DTYPES.items() if dtype.carries_values)


def dtype_of(path: str, name: str) -> Dtype:
    """The dtype of a variable's gradient.

    Args:
        path: label of the variable, for the message.
        name: the dtype's, as TensorFlow has it.

    Raises:
        ValueError: it is none of `DTYPES`.
    """
    if name not in DTYPES:
        raise ValueError(
            f"ScaleComOptimizer: expected variables of a dtype among {', '.join(DTYPES)}; received "
            f"{path} of {name}. Give it another dtype, or do not train it."
        )
    return DTYPES[name]
