"""TensorFlow never writes into NumPy memory that somebody else can see.

What a `tf.numpy_function` returns, and so each batch of `Dataset.from_generator` and with it of a
Keras `PyDataset` or generator, TensorFlow takes without a copy where it is aligned. It knows that
it does not own that memory. But of a slice of it (`tensor.cc`, class SubBuffer) it does not: as
soon as the slice alone holds the memory, the next operation writes its result over it. A batch that
is shared out between replicas is sliced. So an array that came from `np.load(mmap_mode="r+")`
changes in its file, one of a read-only map ends in a SIGSEGV, and a batch that a generator keeps,
to give it again, is another one the second time.

Such arrays are copied on their way in. Those that nobody else holds are not: writing over them
spoils nothing.
"""

import sys

import numpy as np

from tf_scalecom.compat.tensorflow_runtime import FuncRegistry, python_functions

# TensorFlow itself copies what is not aligned to this (`tf.sysconfig.get_compile_flags()`).
ALIGNMENT = 64


def is_seen_by_others(arrays: list, place: int) -> bool:
    """Whether anybody but this list holds the memory of its array at a place.

    The array itself must not stand in a variable of the caller's, which would count.
    """
    if sys.getrefcount(arrays[place]) > _REFERENCES_IN_LIST:
        return True
    if arrays[place].base is None:
        return not arrays[place].flags.owndata
    # NumPy has a view point to the array that owns the memory, past all views in between.
    return not (
        type(arrays[place].base) is np.ndarray
        and arrays[place].base.flags.owndata
        and sys.getrefcount(arrays[place].base) <= _REFERENCES_OF_BASE
    )


def _count_references():
    array = [np.empty(1)]
    view = [np.empty(1)[:]]
    return sys.getrefcount(array[0]), sys.getrefcount(view[0].base)


# Counted, as what Python counts in such expressions depends on its version.
_REFERENCES_IN_LIST, _REFERENCES_OF_BASE = _count_references()


class _Registry(FuncRegistry):
    """TensorFlow's Python functions, by whose call NumPy memory enters."""

    def __call__(self, token, device, args):
        values = super().__call__(token, device, args)
        is_list = isinstance(values, list)
        if not is_list:
            values = [values]
        for place in range(len(values)):
            if (
                isinstance(values[place], np.ndarray)  # not what a py_function returns
                and not values[place].dtype.hasobject  # strings are encoded anew
                and values[place].ctypes.data % ALIGNMENT == 0
                and is_seen_by_others(values, place)
            ):
                values[place] = values[place].copy()
        return values if is_list else values[0]


def copy_what_others_see() -> None:
    """Has all Python functions of this process, earlier ones too, keep to the above."""
    # The one registry that TensorFlow calls, from C++.
    python_functions.__class__ = _Registry
