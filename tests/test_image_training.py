"""Training the image model: what its parts measure, and one run on two workers."""

import json
import subprocess
import sys

import convnet
import numpy as np
import pytest
import step_meter


def test_the_network_is_large_enough_for_compression_to_matter():
    model = convnet.build_convnet()
    assert model.count_params() == 1_634_570
    assert model(np.zeros((2, 28, 28, 1), np.float32)).shape == (2, 10)
    small = sum(int(np.prod(w.shape)) for w in model.trainable_weights if np.prod(w.shape) < 1000)
    assert small < 1000, "what travels dense must stay under 1 % of the compressed bytes' worth"


def test_the_meter_counts_steps_alone(tmp_path, monkeypatch):
    """Neither the skipped steps nor the evaluation between two epochs."""
    counter = tmp_path / "tx_bytes"
    monkeypatch.setattr(step_meter, "LOOPBACK_SENT", counter)
    clock = iter(np.arange(100.0))
    monkeypatch.setattr(step_meter.time, "perf_counter", lambda: next(clock))
    meter = step_meter.StepMeter(num_workers=2, skip_steps=3)
    sent = 0
    for epoch in range(2):
        meter.on_epoch_begin(epoch)
        for step in range(5):
            sent += 600 if epoch or step >= 3 else 10_000
            counter.write_text(f"{sent}\n")
            meter.on_train_batch_end(step)
        sent += 50_000
    # Steps 4 and 5 of the first epoch, 2 to 5 of the second: its first follows an evaluation.
    assert meter.steps == 6
    assert meter.bytes_per_step_and_worker == 300
    assert meter.seconds_per_step == 1


def test_the_meter_says_nothing_rather_than_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(step_meter, "LOOPBACK_SENT", tmp_path / "not-linux")
    meter = step_meter.StepMeter(num_workers=2, skip_steps=0)
    assert meter.seconds_per_step is None
    for step in range(2):
        meter.on_train_batch_end(step)
    assert meter.steps == 1 and meter.bytes_per_step_and_worker is None


@pytest.mark.multi_worker
def test_two_workers_train_compressed_and_the_loopback_agrees_with_the_report(
    tmp_path, pytestconfig
):
    result = tmp_path / "result.json"
    command = [
        *[sys.executable, "-m", "tf_scalecom", "run", "-n", "2", f"--log-dir={tmp_path}"],
        str(pytestconfig.rootpath / "models" / "image" / "train.py"),
        *["--compression_ratio=100", "--warmup_steps=5", "--epochs=2", "--steps_per_epoch=40"],
        *[f"--data_dir={pytestconfig.rootpath / 'data'}", f"--result={result}"],
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "40/40" in done.stdout
    measured = json.loads(result.read_text())
    assert measured["test_accuracy"] > 0.5
    assert measured["bytes_dense"] / measured["bytes_sent"] > 70
    assert measured["bytes_sent"] < measured["loopback_bytes"] < 1.25 * measured["bytes_sent"]
