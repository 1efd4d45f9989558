"""The table of dtypes says what TensorFlow and NumPy say."""

import ml_dtypes
import pytest
import tensorflow as tf

from tf_scalecom.wire.dtypes import DTYPES, VALUE_DTYPES
from tf_scalecom.wire.layout import tensor_layout


@pytest.mark.parametrize("name", DTYPES)
def test_sizes_and_precisions_are_those_of_tensorflow(name):
    dtype, known = tf.as_dtype(name), DTYPES[name]
    assert (dtype.name, dtype.size) == (name, known.bytes)
    if dtype.is_floating:
        assert known.significant_bits == ml_dtypes.finfo(dtype.as_numpy_dtype).nmant + 1
    else:
        bits = int(dtype.max).bit_length() if known.carries_values else 0
        assert (known.significant_bits, known.compressible) == (bits, False)


def test_the_default_comes_first_among_the_choices_for_values():
    assert VALUE_DTYPES[0] == "float32"


def test_a_dtype_that_nothing_is_known_of_is_refused():
    with pytest.raises(ValueError, match=r"a dtype among float32, .*; received w of string\. Give"):
        tensor_layout("w", (5,), "string", 1)
