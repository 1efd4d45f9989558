"""`make demo` ends with a table, and with an error when a claim does not hold."""

import demo
import pytest


def arm(accuracy, loopback_bytes, seconds=0.02):
    return {
        "dataset": "Fashion-MNIST",
        "parameters": 1_634_570,
        "workers": 2,
        "steps": 3_750,
        "recipe": "SGD, seed 0",
        "compression": "100x, beta 0.3",
        "test_accuracy": accuracy,
        "ignored_steps": 110,
        "seconds_per_step": seconds,
        "loopback_bytes": loopback_bytes,
        "bytes_dense": 6_000_000,
        "bytes_sent": 75_000,
    }


def test_the_table_shows_both_arms_and_their_ratios():
    text = demo.table(arm(0.91, 6.3e6), arm(0.905, 0.09e6, seconds=0.01))
    for shown in ("91.00 %", "90.50 %", "-0.50 points", "70.0 x less", "80.0 x less", "2.00 x as"):
        assert shown in text


@pytest.mark.parametrize(
    ("dense", "compressed", "missed"),
    [
        (arm(0.91, 6.3e6), arm(0.901, 0.09e6), []),
        (arm(0.91, 6.3e6), arm(0.89, 0.09e6), ["points of test accuracy lost; received 2.00"]),
        (arm(0.91, 6.3e6), arm(0.95, 0.2e6), ["less traffic or better; received 31.5"]),
        (arm(0.91, None), arm(0.91, None), []),
    ],
)
def test_a_missed_claim_is_named(dense, compressed, missed):
    found = demo.missed_claims(dense, compressed)
    assert len(found) == len(missed)
    assert all(part in claim for part, claim in zip(missed, found, strict=True))


@pytest.mark.multi_worker
def test_a_failed_worker_ends_the_demo_with_an_error(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(demo, "ROOT", tmp_path)  # no training script there
    assert demo.run_arm(tmp_path / "dense", []) is None
    assert "Expected both workers to finish" in capfd.readouterr().err
