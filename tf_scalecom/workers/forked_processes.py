"""Processes that a worker forks, as Keras does to read a `PyDataset`, end when they are told to.

TensorFlow's coordination service catches SIGTERM, and a forked process inherits that without the
thread that would act on it. `multiprocessing` ends its pools by SIGTERM and waits for them, so the
worker itself would never end.
"""

import functools
import os
import signal
import threading
from collections.abc import Callable

_SIGTERM = {signal.SIGTERM}
_forking = threading.local()  # the signals that a thread blocked before


@functools.cache
def obey_sigterm(is_the_workers: Callable[..., bool]) -> None:
    """Has processes forked from now on end by SIGTERM, if the program has no handler of its own.

    Args:
        is_the_workers: whether a handler is one for the worker alone.
    """

    def reset():
        handler = signal.getsignal(signal.SIGTERM)
        # What else Python knows of is the program's, not TensorFlow's.
        if handler in (signal.SIG_DFL, None) or is_the_workers(handler):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _release()

    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=reset)


def _hold():
    # One that comes early waits until it is obeyed.
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGTERM)


def _release():
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)
