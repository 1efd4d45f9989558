"""Workers that wait in different collectives are told what keeps them apart."""

import pytest

from tf_scalecom.workers.different_calls import advice


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (
            ["broadcast of int32 [20], gradients 1f, from replica 0",
             "broadcast of int32 [20], gradients 1f, from replica 1"],
            "the `iterations` of their optimizers differ",
        ),
        (
            ["reduce of float32 [3, 4], gradients 1f", "reduce of float32 [3, 5], gradients 1f"],
            "their models or data differ",
        ),
        (
            ["gather of int32 [8], rows, size class 4", "gather of int32 [8], rows, size class 7"],
            "their models or data differ",
        ),
        (
            ["reduce of float32 [9], gradients 1f", "reduce of float32 [9], gradients 2e"],
            "gradients for other variables",
        ),
        (
            ["gather of int32 [1, 1], numbers of batches", "reduce of float32 [9], gradients 1f"],
            "Some have made a call before that others have not",
        ),
    ],
)  # fmt: skip
def test_advice_is_of_what_differs(calls, why):
    assert why in advice(calls)
