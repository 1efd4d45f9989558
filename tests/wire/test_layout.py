"""The plan: what is kept, how wide an offset is, and the bytes that follow."""

import numpy as np
import pytest
from cases import EXCHANGES, SHAPES, Case

from tf_scalecom.wire.layout import tensor_layout, unique_paths
from tf_scalecom.wire.report import compression_report
from tf_scalecom.wire.route import ALL_REDUCE, LIST, Route


@pytest.mark.parametrize("ratio", [1, 1.2, 2, 2.5, 7, 99.5, 100, 1_000, 10_000])
@pytest.mark.parametrize("chunk_keep", [1, 3, 10])
@pytest.mark.parametrize("elements", [1_000, 1_001, 12_345])
def test_kept_elements_follow_the_definition(ratio, chunk_keep, elements):
    tensor = tensor_layout("v", (elements,), "float32", ratio, chunk_keep=chunk_keep)
    chunk_size = max(1, round(chunk_keep * ratio))
    lengths = [min(chunk_size, elements - s) for s in range(0, elements, chunk_size)]
    expected = sum(min(chunk_keep, max(1, round(length / ratio))) for length in lengths)
    assert tensor.kept == expected
    assert tensor.is_dense == (ratio == 1 or expected == elements)


@pytest.mark.parametrize("ratio", [2, 100, 5_000])
def test_exact_selection_keeps_a_share_of_the_variable(ratio):
    tensor = tensor_layout("v", (77, 100), "float32", ratio, selection="exact")
    assert tensor.kept == max(1, round(7_700 / ratio))
    assert tensor.full_chunks == 1


def test_a_single_chunk_is_an_exact_selection():
    for ratio, selection in (100, "chunk"), (500, "exact"), (900, "exact"):
        tensor = tensor_layout("v", (1_000,), "float32", ratio, chunk_keep=2)
        assert (tensor.selection, tensor.is_dense) == (selection, False)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((999,), "float32"), ((5_000,), "int32"), ((), "float32"), ((0,), "float32")],
)
def test_small_and_integer_tensors_travel_dense(shape, dtype):
    tensor = tensor_layout("v", shape, dtype, 100)
    assert tensor.is_dense
    assert tensor.kept == tensor.elements


@pytest.mark.parametrize(("chunk_size", "width"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_offsets_take_as_few_bytes_as_the_chunk_needs(chunk_size, width):
    assert tensor_layout("v", (10**6,), "float32", chunk_size).offset_bytes == width


@pytest.mark.parametrize("ratio", [2_001, 1e10, 1e300, 10**300])
@pytest.mark.parametrize("chunk_keep", [1, 3, 10**30])
def test_a_chunk_is_no_longer_than_the_variable(ratio, chunk_keep):
    tensor = tensor_layout("v", (2_000,), "float32", ratio, chunk_keep=chunk_keep)
    assert (tensor.chunk_size, tensor.kept, tensor.offset_bytes) == (2_000, 1, 2)
    huge = tensor_layout("v", (2**33,), "float32", ratio, chunk_keep=1)
    assert huge.chunk_size <= 2**31 - 1


def test_paths_are_made_unique():
    assert unique_paths(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]


def test_buckets_hold_all_tensors_from_the_last_to_the_first():
    layout = Case("").layout((100, 100), (10,), (200, 100), (7,), (50, 100))
    # Payload: 100 values of 4 bytes and as many offsets of 1, 10 values, and so on.
    assert layout.buckets(None) == [(0, 1, 2, 3, 4)]
    assert layout.buckets(1) == [(4,), (3,), (2,), (1,), (0,)]
    assert layout.buckets(251) == [(3, 4), (2,), (0, 1)]
    assert layout.buckets(600) == [(0, 1, 2, 3, 4)]  # what is left over joins the last one
    assert layout.buckets(10**6) == [(0, 1, 2, 3, 4)]


def test_each_bucket_has_its_own_flag_and_whole_words():
    layout = Case("").layout((100, 101), (100, 101))
    one, two = (compression_report(layout, 2, Route(True, size)).bytes_sent for size in (None, 1))
    assert two - one == 4 + (2 * 104 - 4 * 51) / 2


def test_report_of_a_known_layout():
    # 10,000 float32, 100x: 100 values of 4 bytes and 100 offsets of 1 byte; 10 dense elements.
    layout = Case("").layout((100, 100), (10,))
    two = compression_report(layout, 2, LIST)
    assert two.bytes_dense == 4 * 10_010
    assert two.bytes_sent == 100 * 4 + 100 * 1 / 2 + 10 * 4 + 4  # the last: the finite flag
    four = compression_report(layout, 4, LIST)
    assert four.bytes_dense == pytest.approx(4 * 10_010 * 1.5)
    assert four.bytes_sent == pytest.approx(1.5 * two.bytes_sent)
    masked = compression_report(layout, 2, ALL_REDUCE)
    assert masked.bytes_sent == two.bytes_sent + 100 / 2
    assert [row.kept for row in two.rows] == [100, 10]
    assert str(two).count("\n") == 5


@pytest.mark.parametrize("case", EXCHANGES, ids=lambda c: c.name)
def test_traffic_does_not_grow_with_replicas_beyond_the_ring_factor(case):
    layout = case.layout(*SHAPES)
    reports = {n: compression_report(layout, n, LIST) for n in (2, 3, 8, 64, 1_000)}
    for n, report in reports.items():
        # Each replica sums whole words of narrow values, up to one more than there are for it, and
        # gives them a scale.
        padding = 16 * n if case.value_dtype != "float32" else 0
        growth = (2 * (n - 1) / n) / 1.0
        expected = growth * reports[2].bytes_sent
        np.testing.assert_allclose(report.bytes_sent, expected, rtol=1e-12, atol=padding)
        if not padding:
            np.testing.assert_allclose(report.ratio, reports[2].ratio, rtol=1e-12)
    assert compression_report(layout, 1, LIST).ratio == 1
