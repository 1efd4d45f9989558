"""Training the image model: what its parts measure, and one run on two workers."""

import json
import subprocess
import sys

import convnet
import image_data
import numpy as np
import pytest
import step_meter
from private_network import private_network_pool


def test_the_network_is_large_enough_for_compression_to_matter():
    model = convnet.build_convnet()
    assert model.count_params() == 1_634_570
    assert model(np.zeros((2, 28, 28, 1), np.float32)).shape == (2, 10)
    small = sum(int(np.prod(w.shape)) for w in model.trainable_weights if np.prod(w.shape) < 1000)
    assert small < 1000, "what travels dense must stay under 1 % of the compressed bytes' worth"


@pytest.mark.parametrize("strides", [1, 2])
def test_the_small_network_has_a_quarter_of_the_weights_with_and_without_pooling(strides):
    model = convnet.build_convnet(filters=(16, 32), units=256, strides=strides)
    assert model.count_params() == 409_034
    assert model(np.zeros((2, 28, 28, 1), np.float32)).shape == (2, 10)
    assert len(model.layers) == (7 if strides == 1 else 5)


@pytest.fixture
def counter(tmp_path, monkeypatch):
    """Stands in for the loopback counter; the clock advances a second each time it is read."""
    path = tmp_path / "dev"
    monkeypatch.setattr(step_meter, "NETWORK_DEVICES", path)
    clock = iter(np.arange(1000.0))
    monkeypatch.setattr(step_meter.time, "perf_counter", lambda: next(clock))
    return path


def test_the_meter_counts_steady_steps_alone(counter):
    """Neither the ignored steps, nor what lies between epochs, nor another program's burst."""
    meter = step_meter.StepMeter(num_workers=2, ignored_steps=3)
    sent = 0
    for epoch in range(4):
        meter.on_epoch_begin(epoch)
        for step in range(30):
            sent += 10_000 if epoch == 0 and step < 3 else 600
            sent += 1_000_000 if epoch == 1 and step == 10 else 0
            counter.write_text(f"    lo: 1 2 3 4 5 6 7 8 {sent} 10 11\n")
            meter.on_train_batch_end(step)
        sent += 50_000
    assert meter.bytes_per_step_and_worker == 300
    assert meter.seconds_per_step == 1 / step_meter.WINDOW


def test_the_meter_says_nothing_rather_than_zero(counter):
    meter = step_meter.StepMeter(num_workers=2, ignored_steps=0)
    assert meter.seconds_per_step is None
    for step in range(step_meter.WINDOW + 1):
        meter.on_train_batch_end(step)
    assert meter.seconds_per_step is not None
    assert meter.bytes_per_step_and_worker is None, "this machine has no counter"


@pytest.mark.multi_worker
@pytest.mark.slow
def test_two_workers_train_compressed_and_the_loopback_agrees_with_the_report(
    tmp_path, pytestconfig
):
    result = tmp_path / "result.json"
    data = pytestconfig.rootpath / "data"
    image_data.load(data)  # which may have to fetch them, and there is no way out below
    command = [
        *[sys.executable, "-m", "tf_scalecom", "run", "-n", "2", f"--log-dir={tmp_path}"],
        str(pytestconfig.rootpath / "models" / "image" / "train.py"),
        *["--compression_ratio=100", "--warmup_steps=5", "--epochs=2", "--steps_per_epoch=40"],
        *[f"--data_dir={data}", f"--result={result}"],
    ]
    with private_network_pool() as pool:
        run = pool.submit(subprocess.run, command, capture_output=True, text=True, timeout=180)
        done = run.result()
    assert done.returncode == 0, done.stdout[-3000:]
    assert "40/40" in done.stdout
    measured = json.loads(result.read_text())
    assert measured["test_accuracy"] > 0.5
    assert measured["bytes_dense"] / measured["bytes_sent"] > 70
    assert measured["bytes_sent"] < measured["loopback_bytes"] < 1.25 * measured["bytes_sent"]
