"""The exchange as a function of tensors, all replicas in one list, against the specification."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from cases import EXCHANGES, SHAPES, Case
from reference import scalecom_step

from tf_scalecom.ops.backends import BACKENDS
from tf_scalecom.ops.words import pack_offsets, unpack_offsets
from tf_scalecom.reduction import clt_k
from tf_scalecom.reduction import exchange as by_any_method
from tf_scalecom.reduction.communicator import ListCommunicator

WIRE = {"float32": np.float32, "float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
# Of a value's rounding, in units of the largest value that travels with it.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 2.0**-7}


class Result(NamedTuple):
    """What an exchange leaves."""

    gradients: list
    residuals: list
    finite: list


def exchange(gradients, residuals, layout, step):
    """Runs an exchange by CLT-k on NumPy arrays [replica][variable]; residuals are flat."""
    shapes = [layout.tensors[i].shape for i in layout.compressed]
    variables = [
        [tf.Variable(m.reshape(shape)) for m, shape in zip(ms, shapes, strict=True)]
        for ms in residuals
    ]
    exchanged = by_any_method.exchange(
        [[tf.constant(g) for g in gs] for gs in gradients],
        layout,
        variables,
        tf.constant(step),
        ListCommunicator(len(gradients)),
        clt_k.CltK(),
    )
    return Result(
        exchanged.gradients,
        [[v.numpy().ravel() for v in vs] for vs in variables],
        exchanged.finite,
    )


@pytest.fixture(params=BACKENDS, ids=lambda kernels: kernels.name)
def kernels(request, monkeypatch):
    """The kernels that `exchange` uses: of every back end that runs here."""
    chosen = request.param
    if problem := chosen.unavailable():
        pytest.skip(f"no {chosen.title} here: {problem}")
    monkeypatch.setattr(clt_k.ops, "kernels_for", lambda layout: chosen)
    return chosen


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
            # A sum travels in the wire's dtype, too; what that takes from it some replica keeps.
            lost = reduced - reduced.astype(WIRE[case.value_dtype]).astype(np.float32)
            atol = 1e-6 * np.abs(reduced).max()
            np.testing.assert_allclose(got.ravel(), reduced - lost, rtol=1e-6, atol=atol)
            held = np.stack([own[place] for own in result.residuals]) - next_residuals
            np.testing.assert_allclose(held.sum(axis=0), case.beta * lost, rtol=1e-5, atol=1e-6)
            others = np.sort(np.abs(held), axis=0)[:-1]
            np.testing.assert_allclose(others, 0, atol=1e-6)
        for position in layout.dense:
            np.testing.assert_allclose(
                result.gradients[0][position],
                sum(gs[position] for gs in gradients),
                rtol=1e-6,
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


@pytest.mark.parametrize(
    ("replicas", "steps"), [(2, 100), (8, 20), pytest.param(32, 5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("wire", ROUNDING)
def test_conservation_holds_to_4_ulp_for_random_gradients(wire, replicas, steps):
    """Each addition rounds; the yardstick is the running sum of magnitudes that were added."""
    case = Case("top1", compression_ratio=20, value_dtype=wire)
    layout = case.layout((2_000,))
    residuals = zeros(layout, replicas)
    total, sent, magnitudes = (np.zeros(2_000) for _ in range(3))
    for step in range(steps):
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


@pytest.mark.parametrize("replicas", [1, 2, 3, 10, 64])
@pytest.mark.parametrize(
    ("wire", "dtype"),
    [
        ("float16", "float16"),
        ("int8", "float16"),
        ("float32", "float16"),
        ("bfloat16", "float16"),
    ],
)
def test_sums_past_a_float16_variable_saturate_and_the_rest_stays_in_the_residuals(
    wire, dtype, replicas, kernels
):
    """Of 10 replicas, tenths of the range would round up."""
    layout = Case("", compression_ratio=100, value_dtype=wire).layout((1_000,), dtype=dtype)
    gradient = np.zeros(1_000, dtype)
    gradient[50] = 6e4
    residuals = [[np.full(1_000, 5e4, np.float32)]] * replicas
    result = exchange([[gradient]] * replicas, residuals, layout, 0)
    assert bool(result.finite[0])
    sent = float(result.gradients[0][0][50])
    assert (0.5 if wire == "int8" else 0.7) * 65_504 <= sent <= 65_504
    (held,) = {float(m[50]) for (m,) in result.residuals}
    assert sent + replicas * held == replicas * (float(gradient[50]) + 5e4)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-9, 1.0, 1e9, 1e36])
@pytest.mark.parametrize("wire", ROUNDING)
def test_gradients_of_any_magnitude_arrive(wire, magnitude, kernels):
    """float16 alone has nothing below 6e-8, nor above 65,504, and int8 no fractions."""
    case = Case("", compression_ratio=20, value_dtype=wire)
    layout = case.layout((2_000,), (50, 40))
    gradients = [[magnitude * g for g in gs] for gs in random_gradients(layout, 3, seed=0)]
    result = exchange(gradients, zeros(layout, 3), layout, 0)
    assert all(map(bool, result.finite))
    for place, tensor in enumerate(layout.tensors):
        own = np.stack([gs[place].ravel() for gs in gradients])
        expected, _, indices = scalecom_step(
            np.zeros_like(own), own, 0, 1, tensor.chunk_size, 1, case.compression_ratio
        )
        got = result.gradients[0][place].numpy().ravel()
        assert not np.delete(got, indices).any()
        # Each of three values is rounded, and their sum.
        rounding = ROUNDING[wire] * np.abs(own).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=6 * rounding)
        held = np.sum([ms[place] for ms in result.residuals], axis=0, dtype=np.float64)
        total = own.sum(axis=0, dtype=np.float64)
        np.testing.assert_allclose(got + held, total, rtol=0, atol=1e-6 * np.abs(total).max())


@pytest.mark.parametrize("wire", ROUNDING)
def test_the_largest_sums_fit_and_the_rest_stays_in_the_residuals(wire, kernels):
    layout = Case("", compression_ratio=100, value_dtype=wire).layout((1_000,))
    gradient = np.zeros(1_000, np.float32)
    gradient[50] = 3e38
    for replicas in (2, 3):
        residuals, sent = zeros(layout, replicas), 0.0
        for step in range(4):
            given = gradient if step == 0 else np.zeros_like(gradient)
            result = exchange([[given]] * replicas, residuals, layout, step)
            assert bool(result.finite[0])
            residuals = result.residuals
            sent += float(result.gradients[0][0][50])
            held = sum(float(m[50]) for (m,) in residuals)
            assert sent + held == pytest.approx(replicas * float(gradient[50]), rel=1e-6)


def test_no_order_of_summing_makes_the_largest_values_infinite():
    for replicas in [*range(1, 70), 257]:
        limit = clt_k.summable_limit("float32", "float16", replicas)
        assert 0.75 * 65_504 < replicas * limit <= 65_504
        # The largest sum of k values in any order is that of the largest of two parts.
        most = np.full(replicas + 1, limit, np.float16)
        for k in range(2, replicas + 1):
            parts = np.arange(1, k)
            most[k] = (most[parts] + most[k - parts]).max()
        assert np.isfinite(most[replicas])


def test_a_sum_with_the_residual_that_overflows_is_flagged_and_residuals_stand(kernels):
    layout = Case("", compression_ratio=100).layout((2_000,), (1_000,))
    gradients = random_gradients(layout, 3, seed=0)
    residuals = [[m.copy() for m in ms] for ms in zeros(layout, 3)]
    gradients[1][0][7] = residuals[1][0][7] = 2.5e38
    for step in range(3):  # whoever leads
        result = exchange(gradients, residuals, layout, step)
        assert [bool(f) for f in result.finite] == [False] * 3
        np.testing.assert_equal(result.residuals, residuals)
    gradients[1][0][7] = 0
    assert bool(exchange(gradients, residuals, layout, 0).finite[0])


def test_a_float64_gradient_beyond_float32_is_flagged(kernels):
    layout = Case("", compression_ratio=100).layout((2_000,), dtype="float64")
    gradients = [[np.zeros(2_000)] for _ in range(2)]
    gradients[1][0][5] = 1e39
    for step in range(2):
        result = exchange(gradients, zeros(layout, 2), layout, step)
        assert not any(map(bool, result.finite))
        assert not any(m.any() for ms in result.residuals for m in ms)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gradients_keep_their_dtype_and_residuals_are_float32(dtype):
    layout = Case("top1", compression_ratio=10).layout((2_000,), (10,), dtype=dtype)
    gradients = [[tf.cast(g, dtype) for g in gs] for gs in random_gradients(layout, 2, seed=0)]
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
    offsets = [tf.constant(rng.integers(0, t.chunk_size, t.kept), tf.int32) for t in tensors]
    words = pack_offsets(offsets, layout)
    assert words.shape == [layout.offset_words]
    for got, expected in zip(unpack_offsets(words, layout), offsets, strict=True):
        np.testing.assert_array_equal(got, expected)
