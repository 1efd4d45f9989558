"""The exchange as a function of tensors, all replicas in one list, against the specification."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from cases import EXCHANGES, SHAPES, Case
from reference import scalecom_step

from tf_scalecom import algorithm
from tf_scalecom.communicator import ListCommunicator
from tf_scalecom.ops import xla

WIRE = {"float32": np.float32, "float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}


class Result(NamedTuple):
    """What an exchange leaves."""

    gradients: list
    residuals: list
    finite: list


def exchange(gradients, residuals, layout, step):
    """Runs `algorithm.exchange` on NumPy arrays [replica][variable]; residuals are flat."""
    shapes = [layout.tensors[i].shape for i in layout.compressed]
    variables = [
        [tf.Variable(m.reshape(shape)) for m, shape in zip(ms, shapes, strict=True)]
        for ms in residuals
    ]
    exchanged = algorithm.exchange(
        [[tf.constant(g) for g in gs] for gs in gradients],
        variables,
        layout,
        tf.constant(step),
        ListCommunicator(len(gradients)),
    )
    return Result(
        exchanged.gradients,
        [[v.numpy().ravel() for v in vs] for vs in variables],
        exchanged.finite,
    )


def zeros(layout, replicas):
    return [
        [np.zeros(layout.tensors[i].elements, np.float32) for i in layout.compressed]
        for _ in range(replicas)
    ]


def random_gradients(layout, replicas, seed, integers=False):
    rng = np.random.default_rng(seed)

    def draw(shape):
        values = rng.integers(-20, 21, shape) if integers else rng.normal(size=shape)
        return np.asarray(values, np.float32)

    return [[draw(t.shape) for t in layout.tensors] for _ in range(replicas)]


@pytest.mark.parametrize("case", EXCHANGES, ids=lambda c: c.name)
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_steps_agree_with_the_specification(case, replicas):
    layout = case.layout(*SHAPES)
    residuals = zeros(layout, replicas)
    for step in range(4):
        gradients = random_gradients(layout, replicas, seed=step)
        result = exchange(gradients, residuals, layout, step)
        assert all(map(bool, result.finite))
        for place, position in enumerate(layout.compressed):
            tensor = layout.tensors[position]
            reduced, next_residuals, indices = scalecom_step(
                np.stack([ms[place] for ms in residuals]),
                np.stack([gs[position].ravel() for gs in gradients]),
                step % replicas,
                case.beta,
                tensor.chunk_size,
                tensor.chunk_keep,
                tensor.compression_ratio,
                WIRE[case.value_dtype],
            )
            got = result.gradients[0][position].numpy()
            assert got.shape == tensor.shape
            assert not np.delete(got, indices).any(), "other elements were selected"
            # A 16-bit wire rounds the running sum too.
            rtol = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}[case.value_dtype]
            atol = rtol * np.abs(reduced).max()
            np.testing.assert_allclose(got.ravel(), reduced, rtol=rtol, atol=atol)
            for replica in range(replicas):
                np.testing.assert_allclose(
                    result.residuals[replica][place], next_residuals[replica], rtol=1e-6, atol=1e-7
                )
        for position in layout.dense:
            np.testing.assert_allclose(
                result.gradients[0][position], sum(gs[position] for gs in gradients), rtol=1e-6,
                atol=1e-6,
            )
        residuals = result.residuals


@pytest.mark.parametrize("case", [c for c in EXCHANGES if c.beta == 1], ids=lambda c: c.name)
def test_conservation_is_exact_for_integer_gradients(case):
    """At beta 1, all that was sent and what the residuals hold is all that there ever was."""
    replicas, layout = 3, case.layout(*SHAPES)
    residuals = zeros(layout, replicas)
    total = [0.0] * len(layout.compressed)
    sent = [0.0] * len(layout.compressed)
    for step in range(6):
        gradients = random_gradients(layout, replicas, seed=step, integers=True)
        result = exchange(gradients, residuals, layout, step)
        residuals = result.residuals
        for place, position in enumerate(layout.compressed):
            total[place] += sum(gs[position].ravel() for gs in gradients)
            sent[place] += result.gradients[0][position].numpy().ravel()
            held = sum(ms[place] for ms in residuals)
            np.testing.assert_array_equal(sent[place] + held, total[place])


def test_conservation_holds_to_4_ulp_for_random_gradients():
    """Each addition rounds; the yardstick is the running sum of magnitudes that were added."""
    case, replicas = Case("top1", compression_ratio=20), 3
    layout = case.layout((2_000,))
    residuals = zeros(layout, replicas)
    total, sent, magnitudes = (np.zeros(2_000) for _ in range(3))
    for step in range(100):
        gradients = random_gradients(layout, replicas, seed=step)
        result = exchange(gradients, residuals, layout, step)
        residuals = result.residuals
        sent += result.gradients[0][0].numpy()
        for (gradient,) in gradients:
            total += gradient
            magnitudes += np.abs(gradient)
        held = np.sum([ms[0] for ms in residuals], axis=0, dtype=np.float64)
        ulp = np.spacing(magnitudes.astype(np.float32))
        assert (np.abs(sent + held - total) <= 4 * ulp).all()


def test_leader_cycles_through_the_replicas():
    layout = Case("", compression_ratio=1_000).layout((1_000,))
    gradients = []
    for replica in range(3):
        g = np.zeros(1_000, np.float32)
        g[100 * (replica + 1)] = 1
        gradients.append([g])
    for step in range(6):
        result = exchange(gradients, zeros(layout, 3), layout, step)
        (index,) = np.flatnonzero(result.gradients[0][0])
        assert index == 100 * (step % 3 + 1)


def test_ties_go_to_the_lowest_offset():
    layout = Case("", compression_ratio=100, chunk_keep=2).layout((1_000,))
    ones = np.ones(1_000, np.float32)
    ones[::2] = -1  # equal magnitudes
    result = exchange([[ones]], zeros(layout, 1), layout, 0)
    starts = np.arange(0, 1_000, 200)
    expected = np.sort(np.concatenate([starts, starts + 1]))
    np.testing.assert_array_equal(np.flatnonzero(result.gradients[0][0]), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 4], ids=["compressed", "dense"])
def test_a_value_that_is_not_finite_on_one_replica_is_flagged_on_all(bad, position):
    layout = Case("top1").layout(*SHAPES)
    gradients = random_gradients(layout, 3, seed=0)
    gradients[1][position].ravel()[7] = bad
    # Also on a replica that is not the leader, in an element that is not selected.
    for step in range(3):
        result = exchange(gradients, zeros(layout, 3), layout, step)
        assert [bool(f) for f in result.finite] == [False] * 3
        assert not any(m.any() for ms in result.residuals for m in ms), "residuals must stay"


@pytest.mark.parametrize("replicas", [1, 2, 3, 64])
def test_sums_past_float16_saturate_and_the_rest_stays_in_the_residuals(replicas):
    layout = Case("", compression_ratio=100, value_dtype="float16").layout((1_000,))
    gradient = np.zeros(1_000, np.float32)
    gradient[50] = 1e6
    result = exchange([[gradient]] * replicas, zeros(layout, replicas), layout, 0)
    assert bool(result.finite[0])
    sent = float(result.gradients[0][0][50])
    assert 0.99 * 65_504 <= sent <= 65_504
    assert sent + sum(float(m[50]) for (m,) in result.residuals) == 1e6 * replicas


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gradients_keep_their_dtype_and_residuals_are_float32(dtype):
    layout = Case("top1", compression_ratio=10).layout((2_000,), (10,), dtype=dtype)
    gradients = [
        [tf.cast(g, dtype) for g in gs] for gs in random_gradients(layout, 2, seed=0)
    ]
    result = exchange(gradients, zeros(layout, 2), layout, 0)
    assert [g.dtype for g in result.gradients[0]] == [tf.as_dtype(dtype)] * 2
    assert result.residuals[0][0].dtype == np.float32


def test_dense_layout_is_a_plain_sum():
    layout = Case("", compression_ratio=1).layout(*SHAPES)
    gradients = random_gradients(layout, 4, seed=0)
    result = exchange(gradients, [[]] * 4, layout, 0)
    for position in range(len(SHAPES)):
        np.testing.assert_array_equal(
            result.gradients[3][position], tf.add_n([gs[position] for gs in gradients])
        )


@pytest.mark.parametrize("case", EXCHANGES, ids=lambda c: c.name)
def test_packing_offsets_loses_nothing(case):
    layout = case.layout(*SHAPES, (70_000,))
    rng = np.random.default_rng(0)
    tensors = [layout.tensors[i] for i in layout.compressed]
    offsets = [
        tf.constant(rng.integers(0, t.chunk_size, t.kept), tf.int32) for t in tensors
    ]
    words = xla.pack_offsets(offsets, layout)
    assert words.shape == [layout.offset_words]
    for got, expected in zip(xla.unpack_offsets(words, layout), offsets, strict=True):
        np.testing.assert_array_equal(got, expected)
