"""The kernels: native and plain TensorFlow ones give the same, bit for bit.

On the CPU; on a GPU where there is one; and everywhere the GPU's kernels, emulated on the CPU by
the native core's tests: all of them but TensorFlow's stream.
"""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from cases import EXCHANGES, SHAPES, Case
from tensorflow.python.framework import kernels as registered_kernels

import tf_scalecom as sc
from tf_scalecom import ops
from tf_scalecom.ops import built, native, xla
from tf_scalecom.reduction import communicator
from tf_scalecom.wire.layout import Layout, tensor_layout
from tf_scalecom.wire.route import BUCKET_BYTES


@pytest.fixture(scope="module", autouse=True)
def needs_the_library():
    try:
        native.library()
    except (OSError, tf.errors.OpError) as error:
        pytest.skip(f"no native kernels here: {error}")


OPERATIONS = (
    "ScalecomCompensate",
    "ScalecomGather",
    "ScalecomFilter",
    "ScalecomScatter",
    "ScalecomDescend",
    "ScalecomSubtract",
)


@pytest.fixture(scope="session")
def emulated_kernels(build_native):
    """Kernels with the label "emulated", for the operations on the CPU."""
    folder = build_native(
        "ops_emulated",
        TF_FLAGS=" ".join(tf.sysconfig.get_compile_flags()).replace("-I", "-isystem"),
        TF_LINKS=" ".join(tf.sysconfig.get_link_flags()),
    )
    tf.load_op_library(str(folder / "ops_emulated.so"))


@pytest.fixture(
    params=[
        "CPU",
        pytest.param("GPU", marks=pytest.mark.gpu),
        pytest.param("emulated", marks=pytest.mark.slow),
    ]
)
def device(request):
    """Where the native kernels run."""
    if request.param == "GPU":
        if not tf.config.list_logical_devices("GPU"):
            pytest.skip("needs a GPU: CUDA_VISIBLE_DEVICES=0 pytest -m gpu tests/ops/test_ops.py")
        assert ops.backend()[0] is native, ops.backend()[1]
    if request.param == "emulated":
        request.getfixturevalue("emulated_kernels")
    return request.param


@contextlib.contextmanager
def on(device):
    """Places what is created or traced inside."""
    if device != "emulated":
        with tf.device(device):
            yield
    else:
        graph = tf.compat.v1.get_default_graph()
        with graph._kernel_label_map(dict.fromkeys(OPERATIONS, "emulated")):
            yield


def inputs(layout, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    tensors = [layout.tensors[i] for i in layout.compressed]
    gradients = [
        tf.cast(scale * rng.normal(size=t.shape).astype(np.float32), t.dtype) for t in tensors
    ]
    residuals = [tf.Variable(rng.normal(size=t.shape).astype(np.float32)) for t in tensors]
    return gradients, residuals


def step(kernels, layout, gradients, residuals, compiled=False, device="CPU", limit=np.inf):
    """All of one replica's kernels; `reduced` is what was sent, doubled."""

    @tf.function(jit_compile=compiled)
    def run():
        with on(device):
            values, words, nonfinite = kernels.compensate(gradients, residuals, True, layout)
            selected, unsent = kernels.gather(values, words, nonfinite, layout, limit)
            finite = tf.equal(nonfinite, 0)
            free = kernels.filter_residuals(unsent, residuals, finite, layout)
            return words, selected, finite, kernels.scatter(words, 2 * selected, layout, free)

    return run()


def copies(variables, device="CPU"):
    with tf.device("CPU" if device == "emulated" else device):
        return [tf.Variable(v) for v in variables]


def assert_same(got, expected):
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


MIXED = Layout(
    (
        tensor_layout("a", (37, 50), "float32", 10),
        tensor_layout("b", (1_001,), "float16", 300, chunk_keep=2),
        tensor_layout("c", (2_000,), "float64", 10),
        tensor_layout("d", (70_000,), "bfloat16", 70_000),
        tensor_layout("e", (3_000,), "float32", 7, "exact"),
    ),
    beta=0.25,
)


@pytest.mark.parametrize(
    "layout",
    [case.layout(*SHAPES) for case in EXCHANGES] + [MIXED],
    ids=[case.name for case in EXCHANGES] + ["mixed_dtypes"],
)
def test_native_and_xla_kernels_agree_to_the_bit(layout, device):
    gradients, twin = inputs(layout, seed=0)
    residuals = copies(twin, device)
    got = step(native, layout, gradients, residuals, device=device)
    assert device != "GPU" or "GPU" in got[1].device
    assert_same(got, step(xla, layout, gradients, twin))
    assert_same(residuals, twin)


@pytest.mark.parametrize("value_dtype", ["float32", "bfloat16", "float16"])
def test_values_saturate_alike_and_the_flag_does_not(value_dtype, device):
    layout = Case("", compression_ratio=10, value_dtype=value_dtype).layout((2_000,), (40, 50))
    for limit, scale in (1.5, 1.0), (np.inf, 3e4), (np.inf, 6e37):
        gradients, twin = inputs(layout, seed=0, scale=scale)
        residuals = copies(twin, device)
        got = step(native, layout, gradients, residuals, device=device, limit=limit)
        assert_same(got, step(xla, layout, gradients, twin, limit=limit))
        assert_same(residuals, twin)
        *values, flag = tf.cast(got[1], tf.float32).numpy()
        assert np.isfinite(values).all() and np.max(np.abs(values)) <= limit
        assert flag == 0
    gradients[0] = tf.tensor_scatter_nd_update(gradients[0], [[7]], [np.inf])
    got = step(native, layout, gradients, residuals, device=device, limit=1.5)
    assert_same(got[1], step(xla, layout, gradients, twin, limit=1.5)[1])
    assert np.isposinf(tf.cast(got[1][-1], tf.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_leaves_residuals_alone(bad, device):
    layout = Case("top1").layout((2_000,), (40, 50))
    gradients, before = inputs(layout, seed=0)
    gradients[1] = tf.tensor_scatter_nd_update(gradients[1], [[3, 7]], [bad])
    residuals = copies(before, device)
    for kernels in (native, xla):
        _, _, finite, _ = step(kernels, layout, gradients, residuals, device=device)
        assert not finite
        assert_same(residuals, before)


def test_a_residual_that_overflows_a_gradient_is_flagged(device):
    layout = Case("top1").layout((2_000,), (40, 50))
    gradients, before = inputs(layout, seed=0)
    gradients[1] = tf.tensor_scatter_nd_update(gradients[1], [[3, 7]], [2.5e38])
    before[1].scatter_nd_update([[3, 7]], [2.5e38])
    residuals = copies(before, device)
    for kernels in (native, xla):
        _, _, finite, _ = step(kernels, layout, gradients, residuals, device=device)
        assert not finite
        assert_same(residuals, before)


def test_every_tensor_has_a_limit_of_its_own(device):
    gradients, twin = inputs(MIXED, seed=0)
    residuals = copies(twin, device)
    limits = [0.5, 0.25, np.inf, 1.0, 0.5]
    got = step(native, MIXED, gradients, residuals, device=device, limit=limits)
    assert_same(got, step(xla, MIXED, gradients, twin, limit=limits))
    assert_same(residuals, twin)
    sent = np.split(got[1][:-1], np.cumsum([t.kept for t in MIXED.tensors])[:-1])
    for values, limit in zip(sent, limits, strict=True):
        assert np.max(np.abs(values)) <= limit


def test_1_minus_beta_is_rounded_alike(device):
    for beta in (0.09, 0.34, 0.59, 0.8, 0.9, 0.99):  # in float64 they make another difference
        layout = Layout((tensor_layout("v", (1_000,), "float32", 10),), beta)
        gradients, twin = inputs(layout, seed=0)
        residuals = copies(twin, device)
        with on(device):
            for kernels, own in (native, residuals), (xla, twin):
                values, words, nonfinite = kernels.compensate(gradients, own, True, layout)
                _, unsent = kernels.gather(values, words, nonfinite, layout, np.inf)
                kernels.filter_residuals(unsent, own, True, layout)
        assert_same(residuals, twin)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_subnormal_numbers_are_zeros(dtype, device):
    layout = Layout((tensor_layout("v", (2_000,), dtype, 100),), 0.5)
    rng = np.random.default_rng(0)
    values = 1e-38 * rng.normal(size=(2, 2_000)).astype(np.float32)  # a quarter is normal
    gradients = [tf.cast(values[0], dtype)]
    twin = [tf.Variable(values[1])]
    residuals = copies(twin, device)
    got = step(native, layout, gradients, residuals, device=device)
    assert_same(got, step(xla, layout, gradients, twin))
    assert_same(residuals, twin)
    left = np.abs(twin[0].numpy())
    assert not np.any((left > 0) & (left < np.finfo(np.float32).tiny))


def test_equal_magnitudes_are_selected_alike():
    layout = Case("", compression_ratio=8, chunk_keep=3).layout((1_003,))
    rng = np.random.default_rng(0)
    for values in (np.ones(1_003), rng.integers(-2, 3, 1_003), np.zeros(1_003)):
        gradients = [tf.constant(values, tf.float32)]
        residuals = [tf.Variable(tf.zeros(1_003))]
        native_words, words = (
            kernels.compensate(gradients, residuals, True, layout).words
            for kernels in (native, xla)
        )
        assert_same(native_words, words)


def test_only_a_leader_selects(device):
    gradients, twin = inputs(MIXED, seed=0)
    residuals = copies(twin, device)
    with on(device):
        led = native.compensate(gradients, residuals, True, MIXED)
        followed = native.compensate(gradients, residuals, False, MIXED)
    assert_same(led.values, followed.values)
    assert_same(led.nonfinite, followed.nonfinite)
    assert np.any(led.words) and not np.any(followed.words)
    assert_same(tuple(followed), tuple(xla.compensate(gradients, twin, False, MIXED)))


def test_descends_where_something_was_sent(device):
    rng = np.random.default_rng(0)
    shapes = [(7,), (40, 50), (3, 4, 5)]
    twin = [tf.Variable(rng.normal(size=s).astype(np.float32)) for s in shapes]
    variables = copies(twin, device)
    read = variables[1].read_value()
    slices = []
    for variable in twin:
        indices = np.flatnonzero(rng.random(variable.shape.num_elements()) < 0.3)
        values = rng.normal(size=indices.shape).astype(np.float32)
        slices.append(tf.IndexedSlices(values, indices, [variable.shape.num_elements()]))
    with on(device):
        native.descend(variables, slices, tf.constant(0.3))
    np.testing.assert_array_equal(read, twin[1])
    xla.descend(twin, slices, tf.constant(0.3))
    assert_same(variables, twin)


def test_adds_rows_in_turn_and_leaves_out_what_is_out_of_range(device):
    rng = np.random.default_rng(0)
    tensors = [tf.constant(rng.normal(size=s).astype(np.float32)) for s in [(7,), (40, 50)]]
    before = [tensor.numpy().copy() for tensor in tensors]
    indices = [
        np.stack([rng.permutation(tensor.shape.num_elements())[:5] for _ in range(3)])
        for tensor in tensors
    ]
    indices[0][1, 2], indices[1][0, 0] = 7, 4_000_000
    values = [rng.normal(size=i.shape).astype(np.float32) for i in indices]
    indices = [tf.constant(i) for i in indices]
    with on(device):
        added = native.add(tensors, indices, values)
    assert_same(added, xla.add(tensors, indices, values))
    assert_same(tensors, before)  # somebody needs them
    assert not np.array_equal(added[0], before[0]) and added[1].shape == (40, 50)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected indices and values of one"):
        native.add(tensors, [i[0] for i in indices], [v[0] for v in values])


def test_a_reader_of_the_residual_keeps_what_it_read(device):
    layout = Case("top1").layout((2_000,))
    gradients, residuals = inputs(layout, seed=0)
    residuals = copies(residuals, device)
    read = residuals[0].read_value()
    before = read.numpy().copy()
    step(native, layout, gradients, residuals, device=device)
    np.testing.assert_array_equal(read, before)
    assert not np.array_equal(residuals[0], before)


@pytest.mark.parametrize("case", EXCHANGES, ids=lambda c: c.name)
@pytest.mark.slow
def test_the_twin_compiles_to_xla(case):
    layout = case.layout(*SHAPES)
    gradients, residuals = inputs(layout, seed=0)
    twin = copies(residuals)
    words, values, finite, _ = step(xla, layout, gradients, residuals, compiled=True)
    plain = step(xla, layout, gradients, twin)
    assert_same((words, finite), (plain[0], plain[2]))
    np.testing.assert_allclose(tf.cast(values, tf.float32), tf.cast(plain[1], tf.float32))
    for a, b in zip(residuals, twin, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # XLA may fuse sums and products


LAYOUT = dict(
    chunk_size=[10, 10],
    chunk_keep=[1, 1],
    tail_keep=[1, 1],
    offset_bytes=[1, 1],
    selection=["chunk", "chunk"],
)
BAD_LAYOUTS = {
    "missing": (dict(chunk_size=[10]), "for each of 2 tensors; got 1, 2, 2 and 2"),
    "width": (dict(offset_bytes=[1, 3]), "tensor 1 of 100 elements.*offset_bytes 3"),
    "size": (dict(chunk_size=[10, 0]), "chunk_size in 1 .* tensor 1 .*chunk_size 0"),
    "keep": (dict(chunk_size=[10, 25], chunk_keep=[1, 17]), "at most 16 .* chunk_keep 17"),
    "selections": (dict(selection=["chunk"]), "a selection for each of 2 tensors; got 1"),
    "selection": (dict(selection=["chunk", "best"]), 'best.* not in.*: "chunk", "exact"'),
}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("name", BAD_LAYOUTS)
def test_bad_layouts_are_refused(name, eager):
    """By the kernel in eager mode, by the shape function in a graph."""
    attributes, message = BAD_LAYOUTS[name]
    gradients = [tf.zeros(100), tf.zeros(100)]
    residuals = [tf.Variable(tf.zeros(100)) for _ in range(2)]

    def compensate():
        return native.library().scalecom_compensate(
            gradients, [r.handle for r in residuals], True, **(LAYOUT | attributes)
        )

    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        compensate() if eager else tf.function(compensate)()


def test_a_residual_of_another_shape_is_refused():
    layout = Case("", compression_ratio=10).layout((2_000,))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"residual of 2000 elements.*\[5\]"):
        native.compensate([tf.zeros(2_000)], [tf.Variable(tf.zeros(5))], False, layout)


def test_a_residual_given_twice_is_refused():
    layout = Case("", compression_ratio=10).layout((2_000,), (2_000,))
    residual = tf.Variable(tf.zeros(2_000))
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 different variables; got one"):
        native.compensate([tf.zeros(2_000)] * 2, [residual] * 2, False, layout)


BAD_ARGUMENTS = {
    "words": (dict(words=tf.zeros(49, tf.int32)), r"expected 50 elements of words; got .*\[49\]"),
    "reduced": (dict(reduced=tf.zeros(200)), r"expected 201 elements of reduced; got .*\[200\]"),
    "limits": (dict(limits=[-1.0]), "expected limits above 0; got -1"),
    "limit_missing": (dict(limits=[]), "expected a limit for each of 1 gradients; got 0"),
    "beta": (dict(beta=1.5), r"expected beta in \(0, 1\]; got 1.5"),
    "gradients": (dict(Ts=["float32"] * 2), "a gradient for each of 1 tensors; got 2"),
}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(name, eager):
    change, message = BAD_ARGUMENTS[name]
    library = native.library()
    layout = dict(chunk_size=[10], chunk_keep=[1], tail_keep=[1], offset_bytes=[1])
    arguments = dict(
        words=tf.zeros(50, tf.int32),
        reduced=tf.zeros(201),
        beta=1.0,
        limits=[np.inf],
        Ts=["float32"],
    )
    arguments |= change
    residual = tf.Variable(tf.zeros(2_000))

    def kernels():
        values = [tf.zeros(2_000)]
        words, nonfinite = arguments["words"], tf.constant(0, tf.uint32)
        gathered = library.scalecom_gather(
            values, words, nonfinite, wire="float32", limits=arguments["limits"], **layout
        )
        library.scalecom_filter(values, [residual.handle], True, beta=arguments["beta"])
        return gathered.values, library.scalecom_scatter(
            words, arguments["reduced"], values, Ts=arguments["Ts"], **layout
        )

    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        kernels() if eager else tf.function(kernels)()


@pytest.mark.parametrize("known", [True, False])
def test_shapes_are_inferred(known):
    gradients, residuals = inputs(MIXED, seed=0)

    @tf.function(
        input_signature=[tf.TensorSpec(g.shape if known else None, g.dtype) for g in gradients]
    )
    def kernels(*gradients):
        values, words, nonfinite = native.compensate(gradients, residuals, True, MIXED)
        selected, unsent = native.gather(values, words, nonfinite, MIXED, np.inf)
        free = native.filter_residuals(unsent, residuals, True, MIXED)
        return words, selected, nonfinite, *native.scatter(words, selected, MIXED, free)

    expected = [[MIXED.offset_words], [MIXED.kept + 1], [], *(g.shape for g in gradients)]
    if not known:
        expected = [[None], [None], []] + [None] * len(gradients)
    shapes = kernels.get_concrete_function().output_shapes
    for got, want in zip(shapes, map(tf.TensorShape, expected), strict=True):
        assert got.rank == want.rank and (got.rank is None or got.as_list() == want.as_list())


def kernels_on_gpu(operation):
    """dtype of attribute T -> arguments in host memory, of an operation's kernels on a GPU."""
    return {
        tf.as_dtype(types[0]).name if len(types) == 1 else "any": set(kernel.host_memory_arg)
        for kernel in registered_kernels.get_registered_kernels_for_op(operation).kernel
        if kernel.device_type in ("GPU", "DEFAULT")
        for types in [[t for c in kernel.constraint for t in c.allowed_values.list.type]]
    }


def test_on_a_gpu_words_are_in_device_memory():
    """From the kernel to the next one, through the cond of the broadcast: as bits of float32."""
    if built.read(native.LIBRARY).cuda is None:
        pytest.skip("needs an op library that was built with nvcc")
    assert kernels_on_gpu("ScalecomCompensate") == {"any": {"residuals", "leads"}}
    assert kernels_on_gpu("ScalecomGather") == {"any": set()}
    assert kernels_on_gpu("ScalecomFilter") == {"any": {"residuals"}}
    assert kernels_on_gpu("ScalecomScatter") == {"any": set()}
    assert kernels_on_gpu("ScalecomDescend") == {"any": {"variables"}}
    assert kernels_on_gpu("Bitcast") == {"any": set()}
    for operation in ("Identity", "EnsureShape", "Switch", "Merge"):
        on_gpu = kernels_on_gpu(operation)
        assert on_gpu["float32"] <= {"pred", "value_index"}, operation
        # Why it is not int32 that travels.
        assert on_gpu["int32"] - {"pred", "value_index"}, operation


def operations_of(function):
    """Those of a traced function and of the functions that it calls."""
    graph = function.get_concrete_function().graph
    bodies = [graph] + [graph._get_function(name).graph for name in graph._functions]
    return [operation for body in bodies for operation in body.get_operations()]


def gpu_kernels_of(operation):
    """Its kernels on a GPU."""
    definition = operation.node_def

    def suits(constraint):
        allowed = constraint.allowed_values.list.type
        return not allowed or definition.attr[constraint.name].type in allowed

    return [
        kernel
        for kernel in registered_kernels.get_registered_kernels_for_op(operation.type).kernel
        if kernel.device_type in ("GPU", "DEFAULT") and all(map(suits, kernel.constraint))
    ]


# What makes or passes on a value that is known before the graph runs, or is in host memory anyway.
STATIC = {"Const", "Placeholder", "NoOp", "Range", "VarHandleOp", "ReadVariableOp", "Shape", "Size"}


@pytest.mark.parametrize("case", [*EXCHANGES, None], ids=lambda c: c.name if c else "mixed_dtypes")
def test_on_a_gpu_the_twin_keeps_indices_in_device_memory(case, monkeypatch):
    """Every operation that computes has a kernel there, and none takes int32 to the host."""
    layout = case.layout(*SHAPES) if case else MIXED
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["GPU:0"])
    gradients, residuals = inputs(layout, seed=0)

    @tf.function(autograph=False)
    def run():
        values, words, nonfinite = xla.compensate(gradients, residuals, leads, layout)
        selected, unsent = xla.gather(values, words, nonfinite, layout, 1.0)
        free = xla.filter_residuals(unsent, residuals, tf.equal(nonfinite, 0), layout)
        return selected, xla.scatter(words, selected, layout, free)

    leads = tf.Variable(True)
    moved = []
    for operation in operations_of(run):
        inputs_here = [i for i in operation.inputs if i.op.type not in STATIC]
        if operation.type in STATIC or not inputs_here:
            continue
        kernels = gpu_kernels_of(operation)
        if not kernels:
            moved.append(f"{operation.name} ({operation.type}) has no kernel on a GPU")
        for tensor in [*inputs_here, *operation.outputs]:
            on_host = all(
                "output" in k.host_memory_arg or "x" in k.host_memory_arg for k in kernels
            )
            if kernels and on_host and tensor.dtype == tf.int32:
                moved.append(f"{operation.name} ({operation.type}) takes int32 to the host")
    assert not moved, "\n".join(moved)


@pytest.mark.parametrize("device", ["/job:worker/replica:0/task:1/device:GPU:0", "CPU:0"])
def test_words_travel_unchanged(device, monkeypatch):
    """On four logical CPUs, as what they would be called between GPUs."""
    wire = communicator._words_dtype(device)
    assert wire == (tf.float32 if "GPU" in device else tf.int32)
    monkeypatch.setattr(communicator, "_words_dtype", lambda _: wire)
    devices = [f"CPU:{i}" for i in range(4)]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=sc.ScaleComAllReduce.for_devices(devices)
    )
    # Quiet and signalling NaN, infinity, denormals, -0: every exponent with some fractions.
    words = np.array(
        [e << 23 | f for e in range(512) for f in (0, 1, 0x3FFFFF, 0x400000, 0x7FFFFF)], np.uint32
    ).view(np.int32)

    @tf.function(autograph=False)
    def broadcast(leader):
        with strategy.scope():
            operations = strategy.extended._cross_device_ops
            replicas = communicator.CollectiveCommunicator(
                operations._launchers, 0, 4, BUCKET_BYTES
            )
            other = tf.zeros_like(words)
            makes = [lambda i=i: tf.constant(words) if i == 2 else other for i in range(4)]
            return replicas.broadcast(makes, leader, len(words))

    for received in broadcast(tf.constant(2)):
        np.testing.assert_array_equal(received, words)


@pytest.mark.slow
def test_the_backend_can_be_chosen_and_is_said():
    processes = {
        wanted: subprocess.Popen(
            [sys.executable, "-m", "tf_scalecom.ops"],
            env={
                "TF_SCALECOM_BACKEND": wanted,
                "CUDA_VISIBLE_DEVICES": "-1",
                "PATH": "/usr/bin:/bin",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for wanted in ("native", "xla", "fast")
    }
    said = {wanted: process.communicate(timeout=120) for wanted, process in processes.items()}
    assert said["native"][0].startswith("native:")
    assert said["xla"][0].startswith("xla:")
    assert "Expected TF_SCALECOM_BACKEND to be native, xla or auto" in said["fast"][1]


def test_auto_is_native_here():
    assert ops.backend()[0] is native
