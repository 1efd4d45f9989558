"""`compression_ratio="auto"`: the paper's per-layer rule."""

import keras
import numpy as np
import pytest

import tf_scalecom as sc
from tf_scalecom.wire.auto_ratio import ratio_for_positions


@pytest.mark.parametrize(
    ("positions", "ratio"),
    [(1, 400), (128, 400), (129, 50), (196, 50), (197, 25), (12_544, 25)],
)
def test_rule(positions, ratio):
    assert ratio_for_positions(positions) == ratio


def ratios(model):
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), compression_ratio="auto")
    optimizer.build(model.trainable_variables)
    rows = optimizer.compression_report(num_replicas=2).rows
    # Without the model's own name in front.
    return {row.path.split("/", 1)[1]: round(row.elements / row.kept) for row in rows}


def test_convolutions_count_their_output_positions():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(64, 3, padding="same", name="first"),
            layers.Conv2D(64, 3, padding="same", name="wide"),  # 1,024 positions
            layers.Conv2D(64, 3, padding="same", strides=(2, 3), name="middle"),  # 16 x 11
            layers.Conv2D(64, 3, strides=2, name="narrow"),  # 7 x 5
            layers.Flatten(),
            layers.Dense(1000, name="dense"),
        ]
    )
    got = ratios(model)
    assert got["first/kernel"] == 1
    assert got["wide/kernel"] == 25
    assert got["middle/kernel"] == 50
    assert got["narrow/kernel"] == pytest.approx(400, rel=0.01)  # a short last chunk
    assert got["dense/kernel"] == 400
    assert got["dense/bias"] == 1


def test_layers_over_a_sequence_count_its_length():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((150,), dtype="int32"),
            layers.Embedding(1_000, 16, name="embedding"),
            layers.LSTM(64, return_sequences=True, name="lstm"),
            layers.Dense(100, name="each"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(100, name="once"),
        ]
    )
    got = ratios(model)
    assert got["embedding/embeddings"] == 400
    assert got["lstm/lstm_cell/recurrent_kernel"] == 50
    assert got["each/kernel"] == 50
    assert got["once/kernel"] == 400


def test_layers_of_unknown_shape_are_refused_with_a_way_out():
    model = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            keras.layers.Conv2D(64, 3),
            keras.layers.Conv2D(64, 3, name="unknown"),
        ]
    )
    with pytest.raises(ValueError, match=r"unknown/kernel.*Give ratios by name"):
        ratios(model)


def test_variables_of_no_layer_are_refused():
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), compression_ratio="auto")
    with pytest.raises(ValueError, match=r"alone.*None"):
        optimizer.build([keras.Variable(np.zeros((40, 50)), name="alone")])
