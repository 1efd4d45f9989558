"""A worker that is asked to end, by SIGTERM, ends training on all workers, between two steps.

TensorFlow catches SIGTERM and goes on, so that whoever asks has to kill it in the end. In `fit` on
several workers, one that is asked goes on to the next step, where it votes for the end of the data
(`stop_together.py`); the epoch then ends on all, which tell each other who was asked, back up, and
end before validation, or a callback that takes the epoch for a whole one. Started again they go on.
Anywhere else, and where the strategy was made in another thread than the main one, a worker ends at
once, and the others with an error that names it.

The exit code is 143, 128 + SIGTERM, as of a program that SIGTERM has ended. A handler of the
program's own, or of Ray's, is left alone.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import NoReturn

import keras

from tf_scalecom.compat.keras_calls import outermost_call
from tf_scalecom.workers.failure_cause import FailureCause
from tf_scalecom.workers.workers import Workers

EXIT_CODE = 128 + signal.SIGTERM
# What the first worker leaves the others to leave, and until a request is looked at again.
_FIRST_SECONDS, _AGAIN_SECONDS = 1.0, 0.5
_GIVE_BACK_SECONDS = 0.05
# More than the C library's `struct sigaction` has.
_SIGACTION_BYTES = 1024


class _Request:
    """Whether this worker was asked."""

    def __init__(self) -> None:
        self.is_made = False

    def handle(self, signum, frame) -> None:
        call = outermost_call()
        in_fit = (
            call is not None and call.name == "fit" and hasattr(call.callbacks, "ends_together")
        )
        if self.is_made or not in_fit:
            if _makes_an_error(frame):
                # An error that TensorFlow is making, of a worker that failed, comes first.
                again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signum))
                again.daemon = True
                again.start()
                return
            _end("tf_scalecom: asked to end (SIGTERM)")
        self.is_made = True
        FailureCause.is_awaited = False  # should a worker have failed
        _say("tf_scalecom: asked to end (SIGTERM); all workers end after this step")


_request = _Request()


@contextlib.contextmanager
def kept_from_tensorflow() -> Iterator[None]:
    """Gives SIGTERM back to whoever has it, where TensorFlow takes it without telling Python.

    All along, as TensorFlow takes it first and waits for the other workers then. It waits in a call
    that Python can not interrupt: a Ctrl-C ends the process, too.
    """
    libc = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    libc.sigaction(int(signal.SIGTERM), None, action)
    over = threading.Event()

    def give_back():
        while not over.wait(_GIVE_BACK_SECONDS):
            libc.sigaction(int(signal.SIGTERM), action, None)

    thread = threading.Thread(target=give_back, name="scalecom-sigterm", daemon=True)
    thread.start()
    with _ended_by_ctrl_c():
        try:
            yield
        finally:
            over.set()
            thread.join()
            libc.sigaction(int(signal.SIGTERM), action, None)


@contextlib.contextmanager
def _ended_by_ctrl_c():
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def listen() -> None:
    """Handles SIGTERM from now on, unless the program does."""
    if threading.current_thread() is not threading.main_thread():
        return  # where Python takes no handlers
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
        signal.signal(signal.SIGTERM, _request.handle)


def is_own(handler) -> bool:
    """Whether a handler of SIGTERM is this one."""
    return handler == _request.handle


def was_asked() -> bool:
    """Whether this worker was asked to end, and has not yet."""
    return _request.is_made


def end_if_asked(workers: Workers, callbacks: Sequence[keras.callbacks.Callback] = ()) -> None:
    """Ends the program if any worker was asked to; a collective call.

    Args:
        workers: all of them.
        callbacks: those that have a method `on_asked_to_end` are told before.

    Raises:
        SystemExit: one was.
    """
    asked = workers.gather(_request.is_made, "requests to end")
    who = [name for name, is_asked in zip(workers.names, asked, strict=True) if is_asked]
    if who:
        for callback in callbacks:
            if hasattr(callback, "on_asked_to_end"):
                callback.on_asked_to_end()
        # The first worker is TensorFlow's coordinator, without whom it would abort the others.
        is_first = workers.rank == 0
        _end(
            f"tf_scalecom: training ends, as {', '.join(who)} was asked to (SIGTERM)",
            after_seconds=_FIRST_SECONDS if is_first else 0.0,
        )


def _end(words, after_seconds=0.0) -> NoReturn:
    _say(f"{words}; exit code {EXIT_CODE}")
    with contextlib.suppress(ValueError):  # in another thread than the main one
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is under way
    # TensorFlow would wait at exit: for the others, who may wait for this one, and for threads of
    # its data, which may wait for Python.
    atexit.register(_leave, after_seconds)
    raise SystemExit(EXIT_CODE)


def _leave(after_seconds):
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(after_seconds)
    finally:
        os._exit(EXIT_CODE)


def _makes_an_error(frame):
    places = (entry.filename for entry in traceback.extract_stack(frame))
    return any(place.endswith("errors_impl.py") for place in places)


def _say(words):
    # Not by `sys.stderr`, which this may have interrupted.
    with contextlib.suppress(OSError):
        os.write(2, f"{words}\n".encode())
