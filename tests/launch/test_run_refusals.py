"""`python -m tf_scalecom run` where something around it is wrong: a line, and training goes on.

Each is a process of its own, as for a user.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SCRIPT = """
import os, sys
sys.stdout.buffer.write(b"caf\\xc3\\xa9 \\xff\\n")
print("trained")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(script, *options, stdout=subprocess.PIPE, before=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tf_scalecom", "run", *map(str, options), str(script)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        env={**os.environ, **environment},
        preexec_fn=before,
    )


def few_open_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


class Refusal(NamedTuple):
    """Options, where "FILE" is a file's path; what comes before; the line expected."""

    options: tuple[str, ...]
    line: str
    before: Callable[[], None] | None = None


REFUSALS = {
    "log_folder_is_a_file": Refusal(
        ("-n", "2", "--log-dir", "FILE"),
        "expected a folder for logs that is there or can be made; received FILE: File exists.",
    ),
    "log_folder_below_a_file": Refusal(
        ("-n", "2", "--log-dir", "FILE/logs"),
        "expected a folder for logs that is there or can be made; received FILE/logs: Not a",
    ),
    "more_workers_than_anyone_has": Refusal(("-n", "99999999999"), "expected at most"),
    "few_open_files": Refusal(
        ("-n", "40"),
        "expected at most 18 workers, for which 100 open files are enough",
        few_open_files,
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused_in_one_line(script, tmp_path, name):
    refusal = REFUSALS[name]
    file = tmp_path / "file"
    file.touch()
    options = [option.replace("FILE", str(file)) for option in refusal.options]
    process = run(script, *options, before=refusal.before)
    *usage, last = process.stderr.decode().splitlines()
    assert process.returncode == 2
    assert refusal.line.replace("FILE", str(file)) in last
    assert not any("Traceback" in line for line in usage)


def test_a_limit_that_may_be_raised_is(script, tmp_path):
    def low():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    process = run(script, "-n", "3", "--log-dir", tmp_path / "logs", before=low)
    assert process.returncode == 0, process.stderr


def logs_are_whole(folder: Path, workers=2):
    return all(b"trained" in (folder / f"worker-{i}.log").read_bytes() for i in range(workers))


def test_output_in_letters_that_the_terminal_does_not_know(script, tmp_path):
    logs = tmp_path / "logs"
    process = run(script, "-n", "2", "--log-dir", logs, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert process.returncode == 0 and not process.stderr
    assert b"caf\\xe9 \\ufffd" in process.stdout
    assert logs_are_whole(logs)


def test_a_full_disk_under_its_output_ends_no_training(script, tmp_path):
    logs = tmp_path / "logs"
    with open("/dev/full", "w") as full:
        process = run(script, "-n", "2", "--log-dir", logs, stdout=full)
    assert process.returncode == 0
    (line,) = process.stderr.decode().splitlines()
    assert line.startswith("[run] no more output: No space left on device; the workers go on")
    assert logs_are_whole(logs)


def test_a_full_disk_of_logs_is_said(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(200_000 * 'x', flush=True)")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root, to make a disk that is soon full")
    try:
        process = run(script, "-n", "1", "--quiet", "--log-dir", disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert process.returncode == 1
    assert f"the disk of {disk} is full: its log may lack its end" in process.stdout.decode()
    assert not process.stderr
