"""The worker side of `worker_cluster`: `worker_main.py FD` obeys the test process at FD.

The first function it gets builds the strategy. Every later one is called with that strategy and the
arguments of the call; its value, or its traceback, goes back.
"""

import contextlib
import faulthandler
import functools
import gc
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection

from _pytest.assertion import install_importhook
from _pytest.config import get_config, parse_warning_filter

_OBJECTS_PER_COLLECTION = 50_000


def prepare() -> None:
    """Set up what all workers have alike, before anything is imported."""
    # Sent when the time of a call is up, to leave all stacks in the log before the end.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Until all is imported, which takes a fifth less time so.
    gc.disable()
    # Keras would import it for its plots, which takes a sixth of the time to start.
    sys.modules["matplotlib"] = None
    # As in the test process: failed asserts show their operands.
    install_importhook(get_config())


def main(control: Connection) -> None:
    """Set up as told, then serve calls until the test process ends this one."""
    logical_cpus, warning_filters = pickle.loads(control.recv_bytes())
    for warning_filter in warning_filters:  # as in the test process, warnings are errors
        warnings.filterwarnings(*parse_warning_filter(warning_filter, escape=False))
    split_cpu(logical_cpus)
    end_iterators_at_once()
    strategy = answer(control)
    reset_keras()
    collect_rarely()
    while True:
        reset_keras()
        answer(control, strategy)


def answer(control: Connection, *first_arguments):
    """Receive one call, make it, send its outcome back; returns its value, or not at all."""
    call = control.recv_bytes()
    try:
        function, arguments, keywords = pickle.loads(call)
        print(f"--- {function.__module__}.{function.__qualname__}", flush=True)
        value = function(*first_arguments, *arguments, **keywords)
        # The strategy itself stays here.
        reply = pickle.dumps(("value", value if first_arguments else None))
    except BaseException:
        control.send_bytes(pickle.dumps(("error", traceback.format_exc())))
        # After an error between collectives a worker is of no use: the test process starts new
        # ones. Until then this one stays, or its peers would report its end instead of their own
        # errors. No further message comes; the end of the connection is an EOFError.
        control.recv_bytes()
        raise
    control.send_bytes(reply)
    return value


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """TensorFlow, if it is first imported inside, leaves oneDNN out, in this process alone.

    oneDNN compiles kernels for each shape, which most tests use for a few steps: a twentieth of
    their time. The programs that tests start have it, as users' do.
    """
    name = "TF_ENABLE_ONEDNN_OPTS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]


def collect_rarely() -> None:
    """Have garbage collected where all is imported, seldom and without a look at what is there.

    TensorFlow's and Keras's half a million objects stay, and so do many of those that tracing a
    graph makes.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    gc.enable()


def split_cpu(logical_cpus: int) -> None:
    """Make TensorFlow see the CPU as `logical_cpus` devices; only before it initialises."""
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * logical_cpus,
    )


def end_iterators_at_once() -> None:
    """Leave tf.data's tuner out: at the end of an iterator it may sleep on, for up to a minute.

    What a strategy of the package distributes has none (`fit.epochs.without_tuner`).
    """
    import tensorflow as tf

    from tf_scalecom.fit.epochs import without_tuner

    begin = tf.data.Dataset.__iter__
    tf.data.Dataset.__iter__ = lambda dataset: begin(
        without_tuner(dataset) if tf.executing_eagerly() else dataset
    )


def forget_origins() -> None:
    """Leave out of graphs where each of their operations was made.

    TensorFlow looks at the whole stack for each of them, which took a seventh of the tests' time,
    to say it in some of its messages. The first one stands for all; a process takes its own, as a
    copy of the template cannot tell one that the template took.
    """
    from tensorflow.python.util import tf_stack

    tf_stack.extract_stack = functools.cache(tf_stack.extract_stack)


def reset_keras() -> None:
    """Give each call the same start, whatever ran before it."""
    import keras

    rewrite_graphs(False)

    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)


def rewrite_graphs(wanted: bool) -> None:
    """Have TensorFlow optimise graphs before it runs them, as it does by default, or not.

    To do that for all tests, most of which run a graph for a few steps, took a tenth of their time.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not wanted})


@contextlib.contextmanager
def rewritten_graphs() -> Iterator[None]:
    """Makes a test's graphs run as users' do."""
    rewrite_graphs(True)
    try:
        yield
    finally:
        rewrite_graphs(False)


if __name__ == "__main__":
    # An EOFError: the test process has gone.
    with Connection(int(sys.argv[1])) as test_process, contextlib.suppress(EOFError):
        main(test_process)
