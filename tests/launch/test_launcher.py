"""`python -m tf_scalecom run`: what the user sees, its exit code, what it leaves behind."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tf_scalecom.__main__ import main
from tf_scalecom.base.random_generators import SEED_VARIABLE
from tf_scalecom.launch import launcher
from tf_scalecom.launch.local_cluster import reserve_ports

PREAMBLE = """
import json, os, pathlib, signal, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
here = pathlib.Path(sys.argv[0]).parent
def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.01)
def meet(name):
    (here / f"{name}-{rank}").touch()
    for other in range(len(config["cluster"]["worker"])):
        wait_for(f"{name}-{other}")
"""
# Ends the tests themselves if the code under test waits for ever.
LIMIT_SECONDS = 60


class Launch:
    """Runs scripts, given as text, under the launcher in this process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.output = ""

    def script(self, text: str) -> Path:
        path = self.folder / "script.py"
        path.write_text(PREAMBLE + text)
        return path

    def __call__(self, text: str, num_workers: int = 2, *args: str, **kwargs) -> int:
        stream = io.StringIO()
        command = [sys.executable, str(self.script(text)), *args]
        kwargs.setdefault("log_dir", self.folder / "logs")
        code = launcher.run(command, num_workers, stream=stream, **kwargs)
        self.output = stream.getvalue()
        return code

    def log(self, index: int) -> str:
        return (self.folder / "logs" / f"worker-{index}.log").read_text()

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())


@pytest.fixture
def launch(tmp_path) -> Launch:
    return Launch(tmp_path)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie, which only waits to be collected, counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


# Output and environment.


def test_output_is_prefixed_and_stored(launch):
    assert launch("print('out', rank); print('err', rank, file=sys.stderr)") == 0
    for rank in (0, 1):
        assert f"[worker {rank}] out {rank}\n" in launch.output
        assert f"[worker {rank}] err {rank}\n" in launch.output
        assert launch.log(rank) == f"out {rank}\nerr {rank}\n"
    assert f"logs in {launch.folder / 'logs'}" in launch.output


def test_every_worker_knows_its_place(launch):
    assert launch("print(os.environ['TF_CONFIG'])", 3) == 0
    configs = [json.loads(launch.log(rank)) for rank in range(3)]
    assert [c["task"] for c in configs] == [{"type": "worker", "index": i} for i in range(3)]
    addresses = configs[0]["cluster"]["worker"]
    assert all(c["cluster"] == {"worker": addresses} for c in configs)
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_arguments_and_environment_reach_the_script(launch):
    code = launch("print(sys.argv[1:], os.environ['COLOUR'])", 1, "--x", "1", env={"COLOUR": "red"})
    assert code == 0
    assert launch.log(0) == "['--x', '1'] red\n"


def test_a_new_log_directory_by_default(launch):
    assert launch("print('hi')", 1, log_dir=None) == 0
    printed = launch.output.splitlines()[-1].split("logs in ")[1]
    assert (Path(printed) / "worker-0.log").read_text() == "hi\n"


def test_a_lot_of_output_is_complete(launch):
    assert launch("print('x' * 99 + chr(10), end='') if rank else print('y' * 3_000_000)") == 0
    assert launch.output.count("y") >= 3_000_000


def test_workers_that_others_have_left_behind_are_named(launch, monkeypatch):
    monkeypatch.setattr(launcher, "_STRAGGLER_SECONDS", 0.2)
    assert launch("if rank == 2: time.sleep(1)", 3) == 0
    assert launch.output.count("other workers have finished; still running: worker 2\n") == 1


# TensorFlow's log.

REMARK = "I0000 00:00:1795915968.300030   12252 cudart_stub.cc:31] Could not find cuda drivers."
ERROR = "E0000 00:00:1795915968.300030   12252 client.cc:7] Out of memory."
SAY = f"print({REMARK!r}); print({ERROR!r}); print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))"


@pytest.mark.parametrize(
    "level, given, asked, seen, shown",
    [
        (None, {}, False, "1", False),
        (None, {}, True, "None", True),
        ("0", {}, False, "0", True),
        ("2", {}, False, "2", False),
        ("2", {"TF_CPP_MIN_LOG_LEVEL": "0"}, False, "0", True),
    ],
)
def test_tensorflow_remarks_are_shown_where_they_are_asked_for(
    launch, monkeypatch, level, given, asked, seen, shown
):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    assert launch(SAY, 1, env=given, tensorflow_log=asked) == 0
    assert launch.output.splitlines()[-2] == f"[worker 0] {seen}"
    assert (REMARK in launch.output) == shown
    assert ERROR in launch.output
    assert REMARK in launch.log(0)


@pytest.mark.multi_worker
def test_a_training_shows_nothing_of_tensorflow(launch, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    script = """
import tf_scalecom as sc
sc.MultiWorkerMirroredStrategy()
print("made")
"""
    assert launch(script, env={"CUDA_VISIBLE_DEVICES": "-1"}) == 0, launch.output
    said = [line for line in launch.output.splitlines() if not line.startswith("[run]")]
    assert sorted(said) == ["[worker 0] made", "[worker 1] made"]


# Failures.


def test_the_worker_that_fails_is_named_with_its_code_and_log(launch):
    code = launch("if rank == 1: sys.exit(7)\ntime.sleep(60)")
    assert code == 7
    log = launch.folder / "logs" / "worker-1.log"
    assert f"[run] worker 1 failed: ended with exit code 7; its log: {log}\n" in launch.output
    assert "worker 0 afterwards: ended by signal 15 (SIGTERM)" in launch.output


def test_of_two_that_fail_at_once_the_one_at_the_root_is_named(launch, monkeypatch):
    monkeypatch.setattr(launcher, "_POLL_SECONDS", 2.0)  # so that both have
    text = """
if rank == 0:
    print("tf_scalecom: worker 0 has failed because of /job:worker/task:1")
sys.exit(3 + rank)
"""
    assert launch(text) == 4
    assert "worker 1 failed: ended with exit code 4" in launch.output


def test_of_two_that_fail_at_once_the_first_is_named(launch, monkeypatch):
    monkeypatch.setattr(launcher, "_POLL_SECONDS", 2.0)  # so that both have
    text = """
if rank == 1: sys.exit(4)
own = pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text()
while not any(
    pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    for pid in own.split()
): time.sleep(0.005)
sys.exit(3)
"""
    assert launch(text) == 4
    assert "worker 1 failed: ended with exit code 4" in launch.output


@pytest.mark.parametrize("quiet", [False, True])
def test_what_a_failing_worker_says_is_shown_once(launch, quiet):
    script = "print('before'); meet('said')\nif rank == 1: raise KeyError('x')"
    assert launch(script, quiet=quiet) == 1
    assert launch.output.count("Traceback") == 1
    assert launch.output.count("KeyError: 'x'\n") == 1
    assert ("[worker 0] before" in launch.output) == (not quiet)


def test_a_worker_that_said_nothing_has_no_last_lines(launch):
    assert launch("os.kill(os.getpid(), signal.SIGKILL)", 1, quiet=True) == 128 + signal.SIGKILL
    assert "worker 0 failed: ended by signal 9 (SIGKILL)" in launch.output
    assert "last lines" not in launch.output


def test_quiet_shows_what_the_launcher_says_alone(launch):
    assert launch("print('out', rank)", quiet=True) == 0
    assert all(line.startswith("[run] ") for line in launch.output.splitlines())
    assert launch.log(1) == "out 1\n"


def test_a_worker_killed_by_a_signal_gives_128_and_the_signal(launch):
    assert launch("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)") == 137
    assert "[run] worker 0 failed: ended by signal 9 (SIGKILL)" in launch.output


def test_a_real_time_signal_has_a_name_too(launch):
    assert launch("os.kill(os.getpid(), signal.SIGRTMIN + 6)") == 128 + signal.SIGRTMIN + 6
    assert "failed: ended by signal 40 (SIGRTMIN+6)" in launch.output


def test_exit_codes_are_known_where_sigchld_is_ignored(launch):
    script = launch.script("sys.exit(3)")
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    command = [sys.executable, "-m", "tf_scalecom", "run", "-n", "1", str(script)]
    run = subprocess.run(
        [sys.executable, "-c", f"{ignoring}os.execv(sys.argv[1], sys.argv[1:])", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert run.returncode == 3 and "worker 0 failed: ended with exit code 3" in run.stdout, run


def test_a_file_in_the_place_of_the_log_folder_does_not_hide_a_failure(launch):
    code = launch(
        "import shutil\n"
        "if rank == 0:\n"
        "    shutil.rmtree(here / 'logs'); (here / 'logs').touch(); sys.exit(3)\n"
        "time.sleep(60)"
    )
    assert code == 3
    assert "worker 0 failed: ended with exit code 3" in launch.output


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_time(launch):
    started = time.monotonic()
    code = launch(
        """
if rank == 0:
    signal.signal(signal.SIGTERM, lambda *_: print("not now"))
    (here / "ready").touch()
    while True: time.sleep(1)
wait_for("ready")
sys.exit(3)
""",
        grace_seconds=1.0,
    )
    assert code == 3
    assert time.monotonic() - started < 20
    assert "[worker 0] not now" in launch.output
    assert "worker 0 afterwards: ended by signal 9 (SIGKILL)" in launch.output


@pytest.mark.parametrize("code", [0, 5])
def test_children_of_workers_do_not_outlive_them(launch, code):
    assert code == launch(
        f"""
child = subprocess.Popen(["sleep", "600"])
(here / f"child-{{rank}}").write_text(str(child.pid))
meet("has-child")
sys.exit({code})
"""
    )
    assert eventually(lambda: all(gone(launch.pid(f"child-{rank}")) for rank in (0, 1)))


# Restarts.

COUNT_STARTS = """
starts = here / f"starts-{rank}"
start = int(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text(str(start))
print("start", start)
meet(f"start-{start}")
"""


def test_after_a_failure_all_workers_start_again(launch):
    code = launch(
        COUNT_STARTS
        + """
if start == 1 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)
if start == 1: time.sleep(60)
""",
        max_restarts=3,
    )
    assert code == 0
    assert [launch.log(rank) for rank in (0, 1)] == ["start 1\nstart 2\n"] * 2
    said = [line for line in launch.output.splitlines() if line.startswith("[run] ")]
    (failure,) = (i for i, line in enumerate(said) if line.startswith("[run] worker 1 failed"))
    restart = said.index("[run] restarting all workers: restart 1 of 3")
    assert restart > failure
    assert said[-1].startswith("[run] every worker finished after restart 1 of 3")


def test_the_others_do_not_hold_up_the_restart_after_a_kill(launch):
    begun = time.monotonic()
    code = launch(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        + COUNT_STARTS
        + """
if start == 1 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)
if start == 1: time.sleep(60)
""",
        max_restarts=1,
        grace_seconds=30,
    )
    assert code == 0 and time.monotonic() - begun < 20
    assert "worker 1 ended by signal 9 (SIGKILL); killing the others" in launch.output
    assert "worker 0 afterwards: ended by signal 9 (SIGKILL)" in launch.output


@pytest.mark.parametrize(
    ("end", "restarts"), [("sys.exit(3)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 0)]
)
def test_the_others_end_as_they_like_after_an_error_or_without_a_restart(launch, end, restarts):
    launch(
        COUNT_STARTS
        + f"""
def finish(*_):
    time.sleep(0.5)
    print("finished")
    sys.exit(143)
signal.signal(signal.SIGTERM, finish)
meet(f"ready-{{start}}")
if start == 1 and rank == 1: {end}
if start == 1: time.sleep(60)
""",
        max_restarts=restarts,
        grace_seconds=30,
    )
    assert "finished" in launch.log(0)


def test_all_workers_get_one_seed_and_again_after_a_restart(launch, monkeypatch):
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    script = COUNT_STARTS + "print('seed', os.environ['TF_SCALECOM_SEED'])\nsys.exit(start % 2)"

    def seeds():
        assert launch(script, max_restarts=1) == 0
        return [line for rank in (0, 1) for line in launch.log(rank).splitlines() if "seed" in line]

    first = seeds()
    assert len(first) == 4 and len(set(first)) == 1
    assert len(set(seeds())) == 2  # the logs are appended to, and each run has its own
    monkeypatch.setenv(SEED_VARIABLE, "7")
    assert "seed 7" in seeds()


def test_restarts_run_out(launch):
    code = launch(COUNT_STARTS + "if rank == 0: sys.exit(start)\ntime.sleep(60)", max_restarts=2)
    assert code == 3
    assert launch.pid("starts-0") == launch.pid("starts-1") == 3
    assert "[run] restarting all workers: restart 2 of 2\n" in launch.output
    assert launch.output.endswith("[run] no restart left of 2: giving up\n")


@pytest.mark.parametrize(
    ("least", "counts"), [(3, [3, 3, 3, 3]), (2, [3, 2, 3, 2]), (1, [3, 2, 1, 3])]
)
def test_each_restart_has_a_worker_less_down_to_the_fewest_and_then_all(launch, least, counts):
    script = """
if rank == 0:
    print(len(config["cluster"]["worker"]))
    sys.exit(7)
time.sleep(60)
"""
    assert launch(script, 3, max_restarts=3, min_workers=least) == 7
    assert [int(line) for line in launch.log(0).splitlines()] == counts
    said = [line for line in launch.output.splitlines() if "] restarting " in line]
    assert said == [
        f"[run] restarting {'all' if count == 3 else f'{count} of 3'} workers: restart {i} of 3"
        for i, count in enumerate(counts[1:], 1)
    ]


@pytest.mark.parametrize(("least", "restarts"), [(3, 1), (1, 0)])
def test_fewer_workers_that_no_start_can_have_are_refused(launch, least, restarts):
    received = f"at most 2, .* received {least} and --max-restarts {restarts}"
    with pytest.raises(ValueError, match=received):
        launch("", 2, max_restarts=restarts, min_workers=least)


# Signals.


def send_when_ready(launch: Launch, signum: int, *names: str) -> None:
    """Send this process a signal each time when the next of some files exists."""

    def send():
        for name in names:
            if eventually((launch.folder / name).exists):
                os.kill(os.getpid(), signum)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_without_a_restart(launch, signum, code):
    send_when_ready(launch, signum, "starts-1")
    assert launch(COUNT_STARTS + "time.sleep(60)", max_restarts=5) == code
    assert launch.pid("starts-1") == 1
    assert "restart" not in launch.output


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_passed_on_and_workers_may_finish(launch, signum, code):
    before = signal.getsignal(signum)
    send_when_ready(launch, signum, "ready")
    assert code == launch(
        f"""
def end(*_): print("saved", rank); sys.exit(0)
signal.signal({int(signum)}, end)
if rank == 0:
    wait_for("ready-1")
    (here / "ready").touch()
else:
    (here / "ready-1").touch()
time.sleep(60)
"""
    )
    assert "[worker 0] saved 0" in launch.output
    assert "[worker 1] saved 1" in launch.output
    assert signal.getsignal(signum) is before


def test_a_second_ctrl_c_kills(launch):
    send_when_ready(launch, signal.SIGINT, "ready", "interrupted")
    code = launch(
        """
signal.signal(signal.SIGINT, lambda *_: (here / "interrupted").touch())
(here / "ready").touch()
while True: time.sleep(1)
""",
        1,
        grace_seconds=LIMIT_SECONDS,
    )
    assert code == 130
    assert "second signal: killing the workers" in launch.output


def start_command(launch: Launch, text: str, **popen) -> subprocess.Popen:
    """Start the real command line on two workers, each of which writes its process id."""
    text = "(here / f'pid-{rank}').write_text(str(os.getpid()))\n" + text
    command = [sys.executable, "-m", "tf_scalecom", "run", "-n", "2", str(launch.script(text))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **popen)


def workers_started(launch: Launch) -> bool:
    paths = [launch.folder / f"pid-{rank}" for rank in (0, 1)]
    return all(path.exists() and path.read_text() for path in paths)


def test_ctrl_c_in_a_terminal_reaches_workers_once(launch):
    command = start_command(
        launch,
        "signal.signal(signal.SIGINT, lambda *_: print('interrupt', rank))\n"
        "(here / f'ready-{rank}').touch()\n"
        "for _ in range(50): time.sleep(0.02)\n"
        "wait_for('end')\n",
        start_new_session=True,
    )
    with command:
        assert eventually(lambda: all((launch.folder / f"ready-{r}").exists() for r in (0, 1)))
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
        time.sleep(1)
        (launch.folder / "end").touch()
        output, _ = command.communicate(timeout=LIMIT_SECONDS)
    assert command.returncode == 130
    assert output.count("interrupt 0") == output.count("interrupt 1") == 1
    assert "Traceback" not in output


def test_workers_and_their_children_end_with_a_killed_launcher(launch):
    text = """
child = subprocess.Popen(["sleep", "600"])
(here / f"child-{rank}").write_text(str(child.pid))
time.sleep(600)
"""
    with start_command(launch, text) as command:
        children = ("child-0", "child-1")
        paths = [launch.folder / name for name in children]
        assert eventually(lambda: all(path.exists() and path.read_text() for path in paths))
        assert eventually(lambda: workers_started(launch))
        command.kill()
    names = ("pid-0", "pid-1", *children)
    assert eventually(lambda: all(gone(launch.pid(name)) for name in names))


def test_workers_end_when_nobody_reads_the_output(launch):
    endless = "while True: print('more'); time.sleep(0.05)"
    with start_command(launch, endless, stderr=subprocess.PIPE) as command:
        assert eventually(lambda: workers_started(launch))
        command.stdout.close()
        assert "BrokenPipe" not in command.stderr.read()
        assert command.wait(LIMIT_SECONDS) == 141
    assert eventually(lambda: all(gone(launch.pid(f"pid-{rank}")) for rank in (0, 1)))


# Ports.


@pytest.mark.multi_worker
def test_a_port_taken_by_someone_else_is_replaced(launch):
    # Worker 1 takes worker 0's port before TensorFlow's server on worker 0 wants it.
    code = launch(
        """
import socket
if rank == 1:
    if not (here / "taken").exists():
        thief = socket.socket()
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("", int(config["cluster"]["worker"][0].split(":")[1])))
        thief.listen()
        (here / "taken").touch()
        time.sleep(600)
    sys.exit(0)
wait_for("taken")
import tensorflow as tf
tf.distribute.Server(config["cluster"], "worker", 0)
print("serving")
os._exit(0)  # the server has no way to stop
""",
        env={"CUDA_VISIBLE_DEVICES": "-1"},
        grace_seconds=LIMIT_SECONDS,
    )
    assert code == 0, launch.output
    assert launch.output.count("worker 0: its port was taken; trying other ports") == 1
    assert "[worker 0] serving" in launch.output


def test_taken_ports_are_given_up_in_the_end(launch):
    assert launch("print('Could not start gRPC server'); sys.exit(4)", 1) == 4
    assert launch.log(0).count("gRPC") == 4
    assert "[run] worker 0 failed: ended with exit code 4" in launch.output


def test_a_reserved_port_is_closed_to_others_and_open_to_the_worker():
    (reserved,) = reserve_ports(1)
    with reserved, socket.socket() as other, socket.socket() as worker:
        with pytest.raises(OSError, match="in use"):
            other.bind(reserved.getsockname())
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow's server
        worker.bind(reserved.getsockname())
        worker.listen()


# The command line.


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "required: COMMAND"),
        (["walk"], "invalid choice: 'walk'"),
        (["run", "script.py"], "required: -n"),
        (["run", "-n", "0", "script.py"], "expected a whole number of workers from 1 to"),
        (["run", "-n", "two", "script.py"], "received 'two': try -n 2"),
        (["run", "-n", "2"], "expected a script to run, received none"),
        (["run", "-n", "2", "no.py"], "received 'no.py', which is not a file here"),
        (["run", "-n", "2", "-m"], "expected a module after -m"),
        (["run", "-n", "2", "--env", "A", "x.py"], "expected KEY=VALUE, received 'A'"),
        (["run", "-n", "2", "--grace-seconds", "-1", "x.py"], "expected a number of seconds"),
        (["run", "-n", "2", "--max-restarts", "-1", "x.py"], "expected a whole number of restarts"),
    ],
)
def test_bad_arguments_say_what_was_expected(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_options_of_the_script_are_the_scripts(launch, capsys):
    script = launch.script("print(sys.argv[1:])")
    assert main(["run", "-n", "1", str(script), "-n", "5", "--env", "x"]) == 0
    assert "[worker 0] ['-n', '5', '--env', 'x']" in capsys.readouterr().out


def test_a_module_can_be_run(launch, capsys):
    launch.script("print('module', sys.argv[1:])")
    path = f"PYTHONPATH={launch.folder}"
    assert main(["run", "-n", "1", "--env", path, "-m", "script", "--x"]) == 0
    assert "[worker 0] module ['--x']" in capsys.readouterr().out
