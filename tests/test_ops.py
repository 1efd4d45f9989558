"""The kernels: native and plain TensorFlow ones give the same, bit for bit."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from cases import EXCHANGES, SHAPES, Case

from tf_scalecom import ops
from tf_scalecom.layout import Layout, tensor_layout
from tf_scalecom.ops import native, xla


@pytest.fixture(scope="module", autouse=True)
def needs_the_library():
    try:
        native.library()
    except (OSError, tf.errors.OpError) as error:
        pytest.skip(f"no native kernels here: {error}")


def inputs(layout, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    tensors = [layout.tensors[i] for i in layout.compressed]
    gradients = [
        tf.cast(scale * rng.normal(size=t.shape).astype(np.float32), t.dtype) for t in tensors
    ]
    residuals = [tf.Variable(rng.normal(size=t.shape).astype(np.float32)) for t in tensors]
    return gradients, residuals


def step(kernels, layout, gradients, residuals, compiled=False):
    """All of one replica's kernels; `reduced` is what was sent, doubled."""

    @tf.function(jit_compile=compiled)
    def run():
        words = kernels.select(gradients, residuals, layout)
        values = kernels.gather(gradients, residuals, words, layout)
        finite = kernels.all_finite(gradients)
        return words, values, finite, kernels.update(
            gradients, residuals, words, values, 2 * values, finite, layout
        )

    return run()


def copies(variables):
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
@pytest.mark.parametrize("seed", [0, 1])
def test_native_and_xla_kernels_agree_to_the_bit(layout, seed):
    if not native.supports(layout):
        pytest.skip("not a layout of the native kernels")
    gradients, residuals = inputs(layout, seed)
    twin = copies(residuals)
    assert_same(
        step(native, layout, gradients, residuals), step(xla, layout, gradients, twin)
    )
    assert_same(residuals, twin)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_leaves_residuals_alone(bad):
    layout = Case("top1").layout((2_000,), (40, 50))
    for kernels in (native, xla):
        gradients, residuals = inputs(layout, seed=0)
        gradients[1] = tf.tensor_scatter_nd_update(gradients[1], [[3, 7]], [bad])
        before = [v.numpy() for v in residuals]
        _, _, finite, _ = step(kernels, layout, gradients, residuals)
        assert not finite
        assert_same(residuals, [tf.constant(b) for b in before])


def test_equal_magnitudes_are_selected_alike():
    layout = Case("", compression_ratio=8, chunk_keep=3).layout((1_003,))
    rng = np.random.default_rng(0)
    for values in (np.ones(1_003), rng.integers(-2, 3, 1_003), np.zeros(1_003)):
        gradients = [tf.constant(values, tf.float32)]
        residuals = [tf.Variable(tf.zeros(1_003))]
        assert_same(
            native.select(gradients, residuals, layout), xla.select(gradients, residuals, layout)
        )


def test_a_reader_of_the_residual_keeps_what_it_read():
    layout = Case("top1").layout((2_000,))
    gradients, residuals = inputs(layout, seed=0)
    read = residuals[0].read_value()
    before = read.numpy().copy()
    step(native, layout, gradients, residuals)
    np.testing.assert_array_equal(read, before)
    assert not np.array_equal(residuals[0], before)


@pytest.mark.parametrize("case", EXCHANGES, ids=lambda c: c.name)
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


BAD_CALLS = {
    "missing layout": dict(chunk_size=[10]),
    "width": dict(offset_bytes=[1, 3]),
    "size": dict(chunk_size=[10, 0]),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_layouts_are_refused(name):
    attributes = dict(
        chunk_size=[10, 10], chunk_keep=[1, 1], tail_keep=[1, 1], offset_bytes=[1, 1]
    )
    gradients = [tf.zeros(100), tf.zeros(100)]
    residuals = [tf.Variable(tf.zeros(100)).handle for _ in range(2)]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="expected"):
        tf.function(
            lambda: native.library().scalecom_select(
                gradients, residuals, **(attributes | BAD_CALLS[name])
            )
        )()


def test_a_residual_of_another_shape_is_refused():
    layout = Case("", compression_ratio=10).layout((2_000,))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"residual of 2000 elements.*\[5\]"):
        native.select([tf.zeros(2_000)], [tf.Variable(tf.zeros(5))], layout)


@pytest.mark.parametrize("wanted", ["native", "xla", "auto", "fast"])
def test_the_backend_can_be_chosen_and_is_said(wanted):
    result = subprocess.run(
        [sys.executable, "-m", "tf_scalecom.ops"],
        env={"TF_SCALECOM_BACKEND": wanted, "CUDA_VISIBLE_DEVICES": "-1", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120,
    )
    if wanted == "fast":
        assert "Expected TF_SCALECOM_BACKEND to be native, xla or auto" in result.stderr
    else:
        assert result.stdout.startswith("xla:" if wanted == "xla" else "native:")


def test_auto_is_native_here():
    assert ops.backend()[0] is native
