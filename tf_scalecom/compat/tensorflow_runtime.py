"""Private parts of TensorFlow's runtime, variables and graphs. Looked at in 2.20 and 2.21."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_scalecom.compat.declared import members, symbol

# --- Runtime -------------------------------------------------------------------------------------

eager_context: Any = symbol(
    "tensorflow.python.eager.context.context", "the runtime's state, which it is asked about"
)
_Context: Any = symbol("tensorflow.python.eager.context.Context", "what eager_context() returns")
members(
    _Context,
    {
        "_context_handle": "whether the runtime has started, after which it takes no cluster",
        "_collective_ops_server_def": "whether an earlier strategy has started the server",
        "coordination_service": "limits for waits on workers, if the user has set none",
        "configure_coordination_service": "the same",
        "abort_collective_ops": "ends collectives that wait for a worker that will not come",
        "check_collective_ops_peer_health": "tells a slow worker from a dead one",
        "get_config_key_value": "what workers say of themselves, to explain a wait",
        "set_config_key_value": "the same",
        "delete_config_key_value": "the same",
    },
)
CoordinatedJob: Any = symbol(
    "tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2.CoordinatedJob",
    "jobs and their sizes, for the coordination service",
)
_runtime_calls: Any = symbol(
    "tensorflow.python.eager.context.pywrap_tfe", "joins the cluster, with the interpreter locked"
)
members(_runtime_calls, {"TFE_EnableCollectiveOps": "the call that waits for all workers"})
_tensorflow_seed: Any = symbol(
    "tensorflow.python.eager.context.global_seed", "tf.random.set_seed has no getter"
)


def runtime_has_started() -> bool:
    """Whether something has run in TensorFlow, which then takes no cluster any more."""
    return eager_context()._context_handle is not None


def server_has_started() -> bool:
    """Whether this process has joined a cluster."""
    return eager_context()._collective_ops_server_def is not None


@contextlib.contextmanager
def joining_with_threads() -> Iterator[None]:
    """Has Python's other threads run while TensorFlow joins a cluster, which may take a minute.

    By the same function of its C library, called without the interpreter's lock; where the library
    has no such function, by TensorFlow's own call.
    """
    folder = Path(tf.sysconfig.get_lib())
    try:
        call = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2")).TFE_EnableCollectiveOps
        library = ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"))
        new_status, delete_status = library.TF_NewStatus, library.TF_DeleteStatus
        code_of, message_of = library.TF_GetCode, library.TF_Message
    except (OSError, AttributeError):
        yield
        return
    pointer = ctypes.c_void_p
    call.argtypes, call.restype = [pointer, ctypes.c_char_p, ctypes.c_size_t, pointer], None
    new_status.restype, message_of.restype = pointer, ctypes.c_char_p
    for function in code_of, message_of, delete_status:
        function.argtypes = [pointer]
    unpacked = ctypes.pythonapi.PyCapsule_GetPointer
    unpacked.argtypes, unpacked.restype = [ctypes.py_object, ctypes.c_char_p], pointer

    def join(context, server):
        status = new_status()
        call(unpacked(context, None), server, len(server), status)
        code, message = code_of(status), message_of(status).decode(errors="replace")
        delete_status(status)
        if code:
            raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, message)

    own = _runtime_calls.TFE_EnableCollectiveOps
    _runtime_calls.TFE_EnableCollectiveOps = join
    try:
        yield
    finally:
        _runtime_calls.TFE_EnableCollectiveOps = own


def global_seed() -> int | None:
    """What `tf.random.set_seed` has set; in a function, what it had when it was traced."""
    return _tensorflow_seed() if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed


# --- Variables and graphs ------------------------------------------------------------------------

ResourceVariable: Any = symbol(
    "tensorflow.python.ops.resource_variable_ops.ResourceVariable",
    "a variable of one device; tf.Variable would be mirrored by the strategy in scope",
)
CheckpointInitialValue: Any = symbol(
    "tensorflow.python.trackable.base.CheckpointInitialValue",
    "the value inside is what tf.train.Checkpoint restores into a new variable",
)
register_read_only_resource_op: Any = symbol(
    "tensorflow.python.framework.auto_control_deps_utils.register_read_only_resource_op",
    "native operations that read residuals need not wait for each other",
)
_in_xla_context: Any = symbol(
    "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext",
    "whether jit_compile=True compiles this code; no public function tells",
)
on_a_tape: Any = symbol(
    "tensorflow.python.eager.record.should_record_backprop",
    "whether a GradientTape follows any of these tensors; no public function tells",
)
_ReplicaThread: Any = symbol(
    "tensorflow.python.distribute.mirrored_run._MirroredReplicaThread",
    "runs a replica's part of a step, and knows the graph of the step",
)
members(_ReplicaThread, {"graph": "the graph that the step was begun in"})


def compiled_by_xla() -> bool:
    """Whether what is traced here will be compiled by XLA."""
    return _in_xla_context(tf.compat.v1.get_default_graph())


def graph_of_step() -> tf.Graph | None:
    """The graph that a strategy's step was begun in; None outside of one, or without a strategy."""
    thread = threading.current_thread()
    return thread.graph if isinstance(thread, _ReplicaThread) else None


# --- Functions and files -------------------------------------------------------------------------

FuncRegistry: Any = symbol(
    "tensorflow.python.ops.script_ops.FuncRegistry",
    "calls Python functions from graphs, by which NumPy memory enters",
)
python_functions: Any = symbol(
    "tensorflow.python.ops.script_ops._py_funcs", "the one registry, called from C++"
)
saved_models: Any = symbol(
    "tensorflow.python.saved_model.save", "where all ways to write a SavedModel find its function"
)
members(saved_models, {"save_and_return_nodes": "wrapped, to write SavedModels whole"})
