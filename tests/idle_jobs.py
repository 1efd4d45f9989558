"""Work for the processor time that the tests leave: compiling above all.

    @idle_job
    def wheel(run, folder):            # in a tests module: makes a session fixture
        run(sys.executable, "-m", "build", "--outdir", folder)
        return next(folder.glob("*.whl"))

    def test_it_is_small(wheel):       # waits for it
        assert wheel.stat().st_size < 1e6

The jobs of the selected tests start with the session and run one after the other, at the lowest
priority. Tests that use one come last. Nothing that has to keep to a time belongs here.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Of a command; it is a hang that this ends, not a slow machine's work.
LIMIT_SECONDS = 1800

_jobs: dict[str, Callable] = {}


def idle_job(function: Callable) -> Callable:
    """Makes a session fixture of `function(run, folder)`: what it returns, or the error it raises.

    `run(*command, cwd=ROOT, **variables)` runs a command, which must succeed, with environment
    variables over the session's, and returns its output, both streams in one. `folder` is new.
    """
    name = function.__name__
    _jobs[name] = function

    @pytest.fixture(scope="session", name=name)
    def result(idle_jobs):
        return idle_jobs[name].result()

    return result


def uses_job(item: pytest.Item) -> bool:
    """Whether a test needs what a job makes."""
    return not _jobs.keys().isdisjoint(getattr(item, "fixturenames", ()))


class IdleJobs:
    """The jobs that these tests use, begun. As a context manager: at its end they are ended."""

    def __init__(self, items: list[pytest.Item], make_folder: Callable[[str], Path]):
        self._pool = ThreadPoolExecutor(max_workers=1)
        # As it is now: tests change it for a while.
        self._environment = dict(os.environ)
        self._running: subprocess.Popen | None = None
        used = {name for item in items for name in getattr(item, "fixturenames", ())}
        self._results: dict[str, Future] = {
            name: self._pool.submit(job, self._run, make_folder(name))
            for name, job in _jobs.items()
            if name in used
        }

    def __getitem__(self, name: str) -> Future:
        return self._results[name]

    def __enter__(self) -> "IdleJobs":
        return self

    def __exit__(self, *exc_info) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            self._running.terminate()
        self._pool.shutdown()

    def _run(self, *command, cwd=ROOT, **variables) -> str:
        with subprocess.Popen(
            [shutil.which("nice"), "-n", "19", *command],  # found without the variables' PATH
            cwd=cwd,
            env={**self._environment, "CUDA_VISIBLE_DEVICES": "-1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as self._running:
            try:
                output, _ = self._running.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._running.kill()
                raise
        assert self._running.returncode == 0, output
        return output
