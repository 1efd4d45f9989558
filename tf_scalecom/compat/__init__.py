"""All that is private to TensorFlow and Keras, in one place; importing it checks that it is there.

The other folders import what they need from here, and a test fails where one does not. To adapt to
a new TensorFlow or Keras, change what the check names, here and at most in `fit/`, then the ranges
in `versions.py` and pyproject.toml.

    tensorflow_*.py, keras_*.py   the symbols, each with the reason why it is needed
    keras_calls.py                which of Keras's calls is under way
    hooks.py                      how methods are wrapped
    declared.py, check.py         what is declared is there, or one error says what is not
"""

import sys

from tf_scalecom.compat.check import check

try:
    check()
except Exception:
    # Python takes a module that it has without asking the package again, whose import has failed.
    for _name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[_name]
    raise
