"""`make soak` fails where something grows or workers differ, and brings killed workers back."""

import re
import subprocess
import sys

import pytest
from package_source import ROOT
from soak import samples as samples_of_soak
from worker_cluster import WORKER_ENV

LIMIT_SECONDS = 240


def life(pid=1, **of_step):
    """A process's samples, every 100 of 5,000 steps; what grows is a function of the step."""

    def value(name, step, usual):
        return of_step[name](step) if name in of_step else usual

    return [
        samples_of_soak.Sample(
            who="worker 1",
            pid=pid,
            time=float(step),
            step=step,
            memory_kib=int(value("memory_kib", step, 700_000)),
            open_files=int(value("open_files", step, 12)),
            threads=int(value("threads", step, 116)),
            children=int(value("children", step, 0)),
            weights=value("weights", step, f"of {step}"),
        )
        for step in range(100, 5001, 100)
    ]


@pytest.mark.parametrize(
    ("name", "grows"),
    [
        # A start, and noise of which nothing stays.
        ("memory_kib", lambda step: 700_000 + 5_000 * (step > 1_000) + 300 * (step // 100 % 3)),
        ("open_files", lambda step: 12 + step // 100 % 2),
        ("threads", lambda step: 116 + 4 * (step > 2_000)),
    ],
)
def test_a_start_and_noise_are_no_growth(name, grows):
    assert samples_of_soak.growing(life(1, **{name: grows}) + life(2, **{name: grows})) == []


@pytest.mark.parametrize(
    ("name", "grows", "said"),
    [
        ("memory_kib", lambda step: 700_000 + step, "KiB of memory more per 1,000 steps"),
        ("open_files", lambda step: 12 + step // 400, "open files more"),
        ("threads", lambda step: 116 + step // 500, "threads more"),
        ("children", lambda step: step // 1_000, "children more"),
    ],
)
def test_what_grows_is_named(name, grows, said):
    (fault,) = samples_of_soak.growing(life(1, **{name: grows}) + life(2, **{name: grows}))
    assert said in fault and "worker 1" in fault


def test_weights_that_differ_are_named_with_their_step():
    same = life(1) + life(2)
    assert samples_of_soak.unequal(same) == []
    other = life(3, weights=lambda step: f"of {step}" if step < 3_000 else "other")
    (fault,) = samples_of_soak.unequal(same + other)
    assert "step 3,000" in fault and "process 3" in fault


@pytest.mark.multi_worker
@pytest.mark.slow
def test_a_short_soak_kills_a_worker_and_comes_to_its_end(tmp_path):
    soak = subprocess.run(
        [
            sys.executable, ROOT / "benchmarks" / "soak", "--workers", "2", "--steps", "300",
            "--kill_every", "200", "--backup_every", "20", "--sample_every", "10",
            "--folder", tmp_path,
        ],
        env={**WORKER_ENV, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=LIMIT_SECONDS,
    )  # fmt: skip
    killed = re.findall(r"killed worker \d after step (\d+)", soak.stdout)
    assert killed and "every worker finished" in soak.stdout, soak.stdout + soak.stderr
    # In so few steps memory still grows, and a thread starts.
    grown = re.findall(r"Soak: expected \S+ \d to take at most \S+ (\S+)", soak.stderr)
    assert set(grown) <= {"KiB", "threads"}
    assert "same weights" not in soak.stderr
    for rank in (0, 1):
        of_worker = samples_of_soak.SampleFile(tmp_path, f"worker {rank}").read()
        assert len(samples_of_soak.lives(of_worker)) == 1 + len(killed)
        assert of_worker[-1].step == 300
