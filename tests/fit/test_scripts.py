"""Scripts of many kinds, as users have them, with two lines changed: the numbers of one process."""

import contextlib
import io
import json
import runpy
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc

FOLDER = Path(__file__).resolve().parents[1] / "scripts"
# Sums of float32 in another order come to 7e-6 after a script's 100 steps or so; what matters to
# more: a last batch of 1 row in 128 that counts as if it were half of them to 1e-4.
TOLERANCE = 3e-5


def outcome(strategy, name, folder):
    """Logs and digest that a script prints if it is given this strategy and runs in this folder."""
    sys.path.insert(0, str(FOLDER))  # as `python tests/scripts/NAME.py` has it
    try:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.chdir(folder)
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="keras_tuner")
            # A process has one strategy, and a cluster of the tests has made it.
            patch.setattr(sc, "MultiWorkerMirroredStrategy", lambda: strategy)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        sys.path.remove(str(FOLDER))
    return json.loads(printed.getvalue().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("text_transformer", ()),
        ("time_series", ()),
        ("vae", ()),
        ("gan", ()),
        ("diffusion", ()),
        ("vit", ()),
        ("siamese", ()),
        ("collaborative_filtering", ()),
        ("transfer_learning", ()),
        ("keras_hub_fine_tuning", ("keras_hub",)),
        ("keras_tuner_search", ("keras_tuner", "tensorboard")),
    ],
)
def test_trains_as_one_process_does(cluster, tmp_path, name, needs):
    for package in needs:
        pytest.importorskip(package, reason=f"needs {package}: pip install {package}")
    together, by_itself = tmp_path / "together", tmp_path / "by itself"
    together.mkdir(), by_itself.mkdir()
    first, second = cluster(2).run(outcome, name, together, timeout=120)
    assert first == second
    keras.utils.clear_session(free_memory=False)
    alone = outcome(tf.distribute.get_strategy(), name, by_itself)
    assert first["logs"].keys() == alone["logs"].keys()
    for log, values in alone["logs"].items():
        np.testing.assert_allclose(first["logs"][log], values, TOLERANCE, TOLERANCE, err_msg=log)


@pytest.mark.slow
def test_batch_normalization_sees_each_replicas_rows_and_weights_stay_equal(cluster, tmp_path):
    first, second = cluster(2).run(outcome, "unet", tmp_path, timeout=120)
    assert first == second
    assert first["logs"]["loss"][-1] < first["logs"]["loss"][0]
