"""`python -m tf_scalecom run`: local workers that start, print and end as one program."""

import contextlib
import os
import re
import resource
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from tf_scalecom.base.random_generators import SEED_VARIABLE, launcher_seed
from tf_scalecom.launch.end_order import EndOrder
from tf_scalecom.launch.local_cluster import LocalCluster, LocalWorker, says_port_taken
from tf_scalecom.launch.tensorflow_log import (
    EVERYTHING,
    LEVEL_VARIABLE,
    WITHOUT_REMARKS,
    is_remark,
)
from tf_scalecom.launch.worker_output import OutputDisplay, last_lines

_POLL_SECONDS = 0.05
_PORT_ATTEMPTS = 4
# Only an uninterruptible system call keeps a process after SIGKILL; do not wait for it for ever.
_UNKILLABLE_SECONDS = 10.0
_STRAGGLER_SECONDS = 10.0
_LINES_SHOWN_ON_FAILURE = 25
_LOG_READ_BYTES = 1 << 20
# What a worker says that fails because of another (workers/watchdog.py, failure_cause.py).
_BLAMES = re.compile(r"tf_scalecom: \S+ \d+ has (failed because of|waited \d+ s in a collective)")
# Open files of a worker here, its port and its log; and of everything else.
_FILES_OF_A_WORKER, _OTHER_FILES = 2, 16

# Longer than workers need to notice that one of them is gone, and to say so (watchdog.py).
GRACE_SECONDS = 20.0


def run(
    command: Sequence[str],
    num_workers: int,
    *,
    log_dir: str | os.PathLike | None = None,
    env: Mapping[str, str] | None = None,
    grace_seconds: float = GRACE_SECONDS,
    max_restarts: int = 0,
    min_workers: int | None = None,
    quiet: bool = False,
    tensorflow_log: bool = False,
    stream: TextIO,
) -> int:
    """Run `command` as `num_workers` workers until all end; returns the exit code to end with.

    When a worker fails the others get SIGTERM, and after the grace time SIGKILL. Then, for
    `max_restarts` times, whatever the failure was, all are started again, on other ports; a script
    that backs up its training carries on where the backup was made. Where a signal has ended the
    worker and a restart follows, the others are killed at once: all they could do is fail, too.
    With `min_workers` each restart has one worker less than the start before, down to that number,
    and the one after that all of them. SIGINT, SIGTERM and SIGHUP are passed on to the workers,
    with the same grace time; a second one kills them, and nothing is started again. A group that
    failed because a port was taken is started again with other ports, which does not count as a
    restart.

    All workers get one random seed, and again the same when they are started again, so that a split
    of the data, say, stays what it was. TF_SCALECOM_SEED in the environment is used in its place.

    Args:
        command: program and arguments, the same for each worker; TF_CONFIG tells them apart.
        num_workers: how many workers to start.
        log_dir: where worker i's output is appended to `worker-i.log`; a new directory by default.
        env: environment variables over those of this process.
        grace_seconds: how long workers that were asked to end may take.
        max_restarts: how often all workers are started again after a failure.
        min_workers: the fewest workers of a restart; by default it has all.
        quiet: show none of the workers' output but the last lines of one that fails.
        tensorflow_log: show what TensorFlow's runtime remarks about itself, too, as it is where
            TF_CPP_MIN_LOG_LEVEL is 0. Its warnings and errors are always shown.
        stream: where the workers' output and the launcher's messages go.

    Returns:
        0 if every worker ended with 0, after a restart or without; otherwise, of the last start,
        the code of the first worker that failed, or 128 + the signal that ended it; 128 + the
        signal if the launcher itself got one.

    Raises:
        ValueError: there can be no such log folder, not so many workers, or the seed is none.
    """
    least = _least(num_workers, min_workers, max_restarts)
    _allow_open_files(num_workers)
    logs = _made(log_dir)
    env = {**(env or {})}
    if launcher_seed({**os.environ, **env}) is None:
        env[SEED_VARIABLE] = str(secrets.randbits(31))
    level = {**os.environ, **env}.get(LEVEL_VARIABLE)
    if level is None and not tensorflow_log:
        env[LEVEL_VARIABLE] = WITHOUT_REMARKS
    remarks = tensorflow_log or level == EVERYTHING
    display = OutputDisplay(
        stream, num_workers, quiet=quiet, leave_out=lambda line: not remarks and is_remark(line)
    )
    with _received_signals() as received:
        for restart in range(max_restarts + 1):
            # What was lost, for want of memory say, may be one worker or several, for good or not.
            count = num_workers - restart % (num_workers - least + 1)
            if restart:
                who = "all workers" if count == num_workers else f"{count} of {num_workers} workers"
                display.note(f"restarting {who}: restart {restart} of {max_restarts}")
            failed = _run_once(
                [command] * count,
                logs,
                env,
                display,
                received,
                grace_seconds,
                restarts=restart < max_restarts,
            )
            if received or failed is None:
                break
    if received:
        display.note(f"interrupted; logs in {logs}")
        return 128 + received[0]
    if failed is None:
        after = f" after restart {restart} of {max_restarts}" if restart else ""
        display.note(f"every worker finished{after}; logs in {logs}")
        return 0
    if max_restarts:
        display.note(f"no restart left of {max_restarts}: giving up")
    code = cast(int, failed.poll())  # it has ended
    return 128 - code if code < 0 else code


def _least(num_workers, min_workers, max_restarts):
    """How many workers a start has at least."""
    if min_workers is None:
        return num_workers
    if min_workers > num_workers or not max_restarts:
        raise ValueError(
            f"expected --min-workers of at most {num_workers:,}, and restarts in which there may "
            f"be so few; received {min_workers:,} and --max-restarts {max_restarts}. Correct them."
        )
    return min_workers


def _run_once(
    commands: Sequence[Sequence[str]],
    log_dir: Path,
    env: Mapping[str, str] | None,
    display: OutputDisplay,
    received: list[int],
    grace_seconds: float,
    restarts: bool,
) -> LocalWorker | None:
    """Start the workers and see them to their end; returns the first that failed, if any."""
    attempts = 0
    while True:
        with _started(commands, log_dir, env) as cluster:
            display.note(f"workers at {', '.join(cluster.addresses)}; logs in {log_dir}")
            watch = _Watch(cluster, display, received, grace_seconds, restarts)
            watch.until_all_ended()
        if _is_full(log_dir):
            display.note(f"the disk of {log_dir} is full: logs may lack their ends")
        failed = watch.first_failed
        if received or failed is None:
            return failed
        attempts += 1
        if attempts == _PORT_ATTEMPTS or not _port_was_taken(failed):
            display.note(_failure_report(failed, cluster, display))
            return failed
        display.note(f"worker {failed.index}: its port was taken; trying other ports")


def _allow_open_files(num_workers):
    """Raises the limit of open files as far as the workers need, if it may."""
    needed = _FILES_OF_A_WORKER * num_workers + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        most = (hard - _OTHER_FILES) // _FILES_OF_A_WORKER
        many = f"at most {most:,} workers" if most > 0 else "no workers at all"
        raise ValueError(
            f"expected {many}, for which {hard:,} open files are enough; "
            f"received {num_workers:,}. Start fewer, or raise that limit (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _is_full(folder):
    with contextlib.suppress(OSError):  # somebody has taken it away
        return shutil.disk_usage(folder).free == 0
    return False


def _made(log_dir):
    try:
        if log_dir is None:
            return Path(tempfile.mkdtemp(prefix="tf_scalecom-run-"))
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"expected a folder for logs that is there or can be made; received "
            f"{log_dir or tempfile.gettempdir()}: {error.strerror}. Name another: --log-dir."
        ) from error
    return Path(log_dir)


def _started(commands, log_dir, env):
    try:
        return LocalCluster(commands, log_dir=log_dir, env=env)
    except OSError as error:
        raise ValueError(
            f"expected {len(commands):,} workers to start, with logs in {log_dir}; received: "
            f"{error.strerror}. Start fewer, or name another folder: --log-dir."
        ) from error


class _Watch:
    """One start of the group: shows output, and ends all when one fails or a signal arrives."""

    def __init__(
        self,
        cluster: LocalCluster,
        display: OutputDisplay,
        received: list[int],
        grace_seconds: float,
        restarts: bool,
    ):
        self.first_failed: LocalWorker | None = None
        self._cluster = cluster
        self._end_order = EndOrder([worker.pid for worker in cluster.workers])
        self._display = display
        self._received = received
        self._passed_on = 0
        self._grace_seconds = grace_seconds
        self._restarts = restarts
        self._first_finished_at: float | None = None
        self._stragglers_named = False
        self._kill_at = float("inf")
        self._give_up_at = float("inf")

    def until_all_ended(self) -> None:
        """Return once no worker runs and all output has been shown."""
        with contextlib.ExitStack() as stack:
            logs = [stack.enter_context(w.open_log()) for w in self._cluster.workers]
            # Exit codes are read before the logs, so what a worker wrote last is shown, too.
            while None in self._check() and time.monotonic() < self._give_up_at:
                self._show_new_output(logs)
                time.sleep(_POLL_SECONDS)
            while self._show_new_output(logs):
                pass
        self._display.finish()

    def _check(self) -> list[int | None]:
        codes = self._cluster.poll()
        self._pass_on_signals()
        if self.first_failed is None and not self._received and any(codes):
            failed = [worker for worker in self._cluster.workers if worker.poll()]
            # Of several at once, one that does not say that it failed because of another.
            self.first_failed = min(
                failed, key=lambda w: (_blames_another(w), self._end_order.place(w.pid))
            )
            if _port_was_taken(self.first_failed):
                self._kill_at = 0.0  # nobody has done anything yet that is worth a grace time
            elif None in codes:
                name = f"worker {self.first_failed.index} {self.first_failed.describe_end()}"
                if self._restarts and self.first_failed.was_killed():
                    self._display.note(f"{name}; killing the others, as all start again")
                    self._kill_at = 0.0
                else:
                    self._ask_to_end(signal.SIGTERM, f"{name}; ending the others")
        if time.monotonic() > self._kill_at:
            self._kill_at = float("inf")
            self._give_up_at = time.monotonic() + _UNKILLABLE_SECONDS
            self._cluster.send_signal(signal.SIGKILL)
        self._name_stragglers(codes)
        return codes

    def _name_stragglers(self, codes: Sequence[int | None]) -> None:
        # Without its peers a worker can save a model, but not train: who waits should know.
        if self._stragglers_named or 0 not in codes or None not in codes:
            return
        if self._first_finished_at is None:
            self._first_finished_at = time.monotonic()
        if time.monotonic() - self._first_finished_at >= _STRAGGLER_SECONDS:
            running = ", ".join(str(index) for index, code in enumerate(codes) if code is None)
            self._display.note(f"other workers have finished; still running: worker {running}")
            self._stragglers_named = True

    def _pass_on_signals(self) -> None:
        while self._passed_on < len(self._received):
            signum = self._received[self._passed_on]
            if self._passed_on == 0:
                self._ask_to_end(signum, f"passed {signal.Signals(signum).name} on to the workers")
            else:
                self._display.note("second signal: killing the workers")
                self._kill_at = 0.0
            self._passed_on += 1

    def _ask_to_end(self, signum: int, reason: str) -> None:
        # TensorFlow catches SIGTERM, and a worker inside a collective sees no signal at all: the
        # grace time always has an end.
        self._display.note(f"{reason} (SIGKILL in {self._grace_seconds:g} s)")
        self._cluster.send_signal(signum)
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_seconds)

    def _show_new_output(self, logs: Sequence[BinaryIO]) -> bool:
        new_output = [log.read(_LOG_READ_BYTES) for log in logs]
        for index, data in enumerate(new_output):
            self._display.show(index, data)
        self._display.refresh()
        return any(new_output)


def _blames_another(failed: LocalWorker) -> bool:
    return _BLAMES.search(_last_words(failed)) is not None


def _port_was_taken(failed: LocalWorker) -> bool:
    return says_port_taken(_last_words(failed))


def _last_words(failed: LocalWorker) -> str:
    return failed.output(_LOG_READ_BYTES).decode(errors="replace")


def _failure_report(failed: LocalWorker, cluster: LocalCluster, display: OutputDisplay) -> str:
    """Who failed and how; with the end of its output, where that has not been shown."""
    report = [f"worker {failed.index} failed: {failed.describe_end()}; its log: {failed.log_path}"]
    if display.quiet:
        end = failed.output(_LOG_READ_BYTES)
        lines = last_lines(end, _LINES_SHOWN_ON_FAILURE, display.leave_out)
        if lines:
            report += ["its last lines:", *("    " + line for line in lines)]
    for worker in cluster.workers:
        if worker is not failed:
            report.append(f"worker {worker.index} afterwards: {worker.describe_end()}")
    return "\n".join(report)


@contextlib.contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, instead of obeying them."""
    received: list[int] = []
    previous = {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup and "&" are left alone
            previous[signum] = signal.signal(signum, lambda number, _: received.append(number))
    # Where it is ignored, as some start programs, the kernel keeps no exit code of a worker.
    previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield received
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
