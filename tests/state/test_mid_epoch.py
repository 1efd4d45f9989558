"""A backup in the middle of an epoch: training goes on at the next batch, as if undisturbed."""

import copy
import functools

import pytest
from interrupted_training import INTERRUPTED_EPOCH, STEPS, fit
from logged_warnings import warnings_logged
from worker_cluster import WorkerCluster

TIMEOUT = 120


@pytest.fixture(scope="module")
def undisturbed(cluster):
    """What two workers come to without an interruption: `undisturbed(kind, **arguments)`."""

    @functools.cache
    def train(kind, **arguments):
        return cluster(2).run(fit, kind, timeout=TIMEOUT, **arguments)

    return lambda *args, **kwargs: copy.deepcopy(train(*args, **kwargs))


def assert_goes_on(results, straight, first):
    """Bit for bit, from that batch of the interrupted epoch on."""
    for result, expected in zip(results, straight, strict=True):
        assert result["steps"].pop(INTERRUPTED_EPOCH) == [
            batch for batch in expected["steps"].pop(INTERRUPTED_EPOCH) if batch >= first
        ]
        for epoch in result["logs"]:
            assert result["logs"][epoch] == expected["logs"][epoch]
        assert INTERRUPTED_EPOCH in result["logs"]
        for part in ("weights", "moving", "residuals", "slots"):
            assert result[part] == expected[part], part
    assert results[0]["residuals"] != results[1]["residuals"]


SAVE_FREQ = 9
# After which the backup is of that epoch.
BATCH = SAVE_FREQ - STEPS - 1
ARGUMENTS = {"save_freq": SAVE_FREQ, "timeout": TIMEOUT}


@pytest.mark.parametrize("kind", ["arrays", "dataset", "PyDataset"])
def test_an_epoch_goes_on_at_the_next_batch(cluster, undisturbed, tmp_path, kind):
    """3 epochs straight equal a part, an error after the backup, and the rest."""
    folder, straight = str(tmp_path), undisturbed(kind)
    assert cluster(2).run(fit, kind, folder, batch=BATCH, **ARGUMENTS) == [None, None]
    # A process of its own draws another seed.
    results = cluster(2).run(fit, kind, folder, seed=1, **ARGUMENTS)
    if kind == "PyDataset":
        whole, rest = (of_one[0]["asked_for"] for of_one in (straight, results))
        left = 3 * STEPS - SAVE_FREQ
        assert rest[-left:] == whole[-left:]
        assert len(rest) < len(whole) - STEPS  # no batch of the epoch is read over
    assert_goes_on(results, straight, BATCH + 1)


# Some backups are made after the last batch of an epoch.
@pytest.mark.parametrize(
    ("kind", "save_freq", "steps", "arguments"),
    [
        ("arrays, validated", 9, 6, {}),
        ("arrays, by batch", 12, 6, {}),
        ("arrays, half in each epoch", 5, 3, {}),
        ("arrays, half in each epoch", 6, 3, {}),
        ("arrays", 10, 6, {"steps_per_execution": 2}),
        ("repeat", 6, 4, {}),
        ("of each", 9, 7, {}),
        ("PyDataset, threads", 12, 6, {}),
        ("PyDataset, endless", 6, 4, {}),
    ],
)
@pytest.mark.slow
def test_an_epoch_of_other_data_goes_on(cluster, tmp_path, kind, save_freq, steps, arguments):
    """From a copy of the backup as it stood after a batch of the training that went on."""
    folder, kept = str(tmp_path / "backup"), str(tmp_path / "kept")
    batch = save_freq - steps - 1
    arguments |= {"save_freq": save_freq, "timeout": TIMEOUT}
    straight = cluster(2).run(fit, kind, folder, batch=batch, kept=kept, **arguments)
    results = cluster(2).run(fit, kind, kept, seed=1, **arguments)
    assert_goes_on(results, straight, batch + 1)


def fit_and_listen(*args, **kwargs):
    with warnings_logged() as lines:
        return fit(*args, **kwargs), lines


@pytest.mark.parametrize(
    ("kind", "then", "why"),
    [
        ("generator", "generator", "a generator cannot be begun in its middle"),
        ("arrays", "PyDataset", "data: 'arrays' (the backup), 'a PyDataset' (this program)"),
    ],
)
def test_where_it_cannot_go_on_it_says_so_and_the_epoch_starts_again(
    cluster, tmp_path, kind, then, why
):
    cluster(2).run(fit, kind, str(tmp_path), batch=BATCH, **ARGUMENTS)
    for result, lines in cluster(2).run(fit_and_listen, then, str(tmp_path), **ARGUMENTS):
        assert result["steps"][INTERRUPTED_EPOCH] == list(range(STEPS))
        (line,) = (line for line in lines if "from its start" in line)
        assert "with epoch 2 from its start, not with its batch 4: " in line and why in line


# --- SIGTERM -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ask", "first"),
    [
        ("arrays", ("on_train_batch_end", 3), 4),
        ("arrays, validated", ("on_test_batch_end", None), STEPS),
    ],
)
def test_a_backup_is_made_when_one_worker_is_asked_to_end(
    cluster, undisturbed, tmp_path, kind, ask, first
):
    asked = WorkerCluster(2, log_dir=tmp_path / "logs")
    folder = str(tmp_path / "backup")
    try:
        assert asked.run(fit, kind, folder, ask=ask, timeout=TIMEOUT) == [143, 143]
    finally:
        asked.close()
    results = cluster(2).run(fit, kind, folder, seed=1, timeout=TIMEOUT)
    assert_goes_on(results, undisturbed(kind), first)
