"""What commands answer to odd inputs: one clear line and an exit code, no traceback of ours.

A row of a table is a command, its input, the line expected and the exit code. To add one, write
down what you gave and what should be said; what to write as an input stands at `given`.
"""

import contextlib
import io
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated_task import LinearClasses

import tf_scalecom as sc
from tf_scalecom.__main__ import main
from tf_scalecom.launch.local_cluster import reserve_ports
from tf_scalecom.simulate import Simulation, SimulationConfig, plots, run, run_files

FOLDER, PIPE = object(), object()
LIMIT_SECONDS = 60


class Link(NamedTuple):
    to: str


class Row(NamedTuple):
    """Command, without `python -m tf_scalecom`; input; the line expected; exit code."""

    command: str
    input: Mapping[str, object]
    line: str
    code: int


@contextlib.contextmanager
def given(row: Row, monkeypatch) -> Iterator[None]:
    """Puts a row's input into the current folder.

    {"name": text or bytes of a file, FOLDER, PIPE or Link(to), "$NAME": an environment variable,
    "@peer": what another program answers at the address of worker 1}.
    """
    with contextlib.ExitStack() as stack:
        for name, content in row.input.items():
            if name == "@peer":
                stack.enter_context(peer(content, monkeypatch))
            elif name.startswith("$"):
                monkeypatch.setenv(name[1:], content)
            elif content is FOLDER:
                Path(name).mkdir(parents=True)
            elif content is PIPE:
                os.mkfifo(name)
            elif isinstance(content, Link):
                os.symlink(content.to, name)
            else:
                data = content if isinstance(content, bytes) else content.encode()
                Path(name).write_bytes(data)
        yield


@contextlib.contextmanager
def peer(answer: bytes, monkeypatch) -> Iterator[None]:
    here, there = reserve_ports(2)
    addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in (here, there)]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with (
        socket.create_server(("", there.getsockname()[1])) as server,
        ThreadPoolExecutor(1) as pool,
    ):

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        served = pool.submit(serve)
        yield
        served.result()
    here.close()
    there.close()


def names(rows):
    return pytest.mark.parametrize(
        "row", rows, ids=[f"{i}-{r.command[:40]}" for i, r in enumerate(rows)]
    )


def check(row: Row, code: int, out: str, err: str) -> None:
    lines = [line for line in err.splitlines() if not line.startswith(("usage:", "    "))]
    assert code == row.code, out + err
    assert any(row.line in line for line in [*out.splitlines(), *lines]), out + err
    assert "Traceback" not in out + err and "\x1b" not in out + err
    assert code != 2 or len(lines) == 1, err


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """Runs a row in this process, in a folder of its own, and checks what comes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(plots, "pyplot", lambda: None)

    def run_row(row):
        with given(row, monkeypatch):
            try:
                code = main(shlex.split(row.command))
            except SystemExit as end:
                code = end.code
        check(row, code, *capsys.readouterr())

    return run_row


# --- run -----------------------------------------------------------------------------------------

OK = {"train.py": "print('trained')"}
NINES = "9" * 5000

RUN = [
    Row("run -n 99999999999 train.py", OK, "expected at most ", 2),
    Row(f"run -n {NINES} train.py", OK, "expected a whole number of workers from 1 to", 2),
    Row("run -n 0 train.py", OK, "received '0': try -n 2", 2),
    Row("run -n -1 train.py", OK, "received '-1': try -n 2", 2),
    Row("run -n 1.5 train.py", OK, "received '1.5': try -n 2", 2),
    Row("run -n '' train.py", OK, "received '': try -n 2", 2),
    Row("run -n ² train.py", OK, "received '²': try -n 2", 2),
    Row("run train.py", OK, "the following arguments are required: -n/--num-workers", 2),
    Row("run -n 1 --grace-seconds nan train.py", OK, "expected a number of seconds from 0", 2),
    Row("run -n 1 --grace-seconds=-1 train.py", OK, "expected a number of seconds from 0", 2),
    Row("run -n 1 --grace-seconds 1e400 train.py", OK, "expected a number of seconds from 0", 2),
    Row("run -n 1 --max-restarts -1 train.py", OK, "expected a whole number of restarts", 2),
    Row("run -n 1 --max-restarts 999999999999 train.py", OK, "every worker finished", 0),
    Row("run -n 2 --min-workers 0 train.py", OK, "expected a whole number of workers", 2),
    Row("run -n 2 --min-workers 3 --max-restarts 1 train.py", OK, "received 3 and", 2),
    Row("run -n 1 --env A train.py", OK, "expected KEY=VALUE, received 'A'", 2),
    Row("run -n 1 --env =x train.py", OK, "expected KEY=VALUE, received '=x'", 2),
    Row("run -n 1 --env TF_CONFIG={} train.py", OK, "another variable than TF_CONFIG", 2),
    Row("run -n 1 --env TF_SCALECOM_SEED=x train.py", OK, "Expected a whole number from 0", 2),
    Row("run -n 1", {}, "expected a script to run, received none", 2),
    Row("run -n 1 -m", {}, "expected a module after -m, received nothing", 2),
    Row("run -n 1 -m no_such_module", {}, "worker 0 failed: ended with exit code 1", 1),
    Row("run -n 1 nothing.py", {}, "'nothing.py', which is not a file here", 2),
    Row("run -n 1 ''", {}, "'', which is not a file here", 2),
    Row("run -n 1 folder", {"folder": FOLDER}, "'folder', which is not a file here", 2),
    Row(f"run -n 1 {'a' * 300}.py", {}, "which is not a file here", 2),
    Row("run -n 1 train.py", {"train.py": "def f(:"}, "worker 0 failed: ended with exit", 1),
    Row("run -n 1 train.py", {"train.py": b"\0"}, "worker 0 failed: ended with exit", 1),
    Row("run -n 1 train.py", {"train.py": ""}, "every worker finished", 0),
    Row("run -n 1 --log-dir '' train.py", OK, "expected a folder, received ''", 2),
    Row("run -n 1 --log-dir logs train.py", {**OK, "logs": ""}, "received logs: File exists", 2),
    Row("run -n 1 --log-dir logs/a train.py", {**OK, "logs": ""}, "logs/a: Not a directory", 2),
    Row("run -n 1 --log-dir logs train.py", {**OK, "logs": Link("logs")}, "received logs: ", 2),
    Row("run -n 1 --log-dir /proc/logs train.py", OK, "received /proc/logs: No such file", 2),
    Row(f"run -n 1 --log-dir {'a' * 300} train.py", OK, "File name too long", 2),
    *(
        Row(
            "run -n 2 --log-dir logs train.py",
            {**OK, "logs": FOLDER, "logs/worker-1.log": what},
            "received: logs/worker-1.log is no ordinary file",
            2,
        )
        for what in (FOLDER, PIPE, Link("/dev/full"), Link("/dev/null"))
    ),
    Row(
        "run -n 2 --log-dir logs train.py",
        {"train.py": "import shutil; shutil.rmtree('logs', ignore_errors=True); exit(1)"},
        "failed: ended with exit code 1",
        1,
    ),
    Row(
        "run -n 1 train.py",
        {"train.py": r"import sys; sys.stdout.buffer.write(b'caf\xc3\xa9 \xff \x80\n')"},
        "[worker 0] café � �",
        0,
    ),
    Row(
        "run -n 1 train.py",
        {"train.py": r"print('a\x1b]0;title\x07b\x1bcc\x1b[2Jd\x9b1me\x0ef\x07', end='')"},
        "[worker 0] abcd1mef",
        0,
    ),
]


@names(RUN)
def test_run(row, answer):
    answer(row)


# In a shell, where `scalecom` is the command: about limits and streams of a process.
SHELL = [
    Row("ulimit -n 30; scalecom run -n 40 train.py", OK, "expected at most 7 workers", 2),
    Row("ulimit -n 12; scalecom run -n 1 train.py", OK, "expected no workers at all", 2),
    Row("ulimit -Sn 12; scalecom run -n 3 train.py", OK, "every worker finished", 0),
    Row("ulimit -n 24; scalecom run -n 3 train.py", OK, "every worker finished", 0),
    Row(
        "scalecom run -n 2 --log-dir logs train.py > /dev/full; code=$?; cat logs/*; exit $code",
        OK,
        "trained",
        0,
    ),
    Row("scalecom run -n 1 train.py > /dev/full", OK, "no more output: No space left on dev", 0),
    Row("scalecom run -n 1 train.py > /dev/full", {"train.py": "exit(3)"}, "no more output", 3),
    Row("scalecom run -n 1 train.py > /dev/full 2> /dev/full; echo $?", OK, "0", 0),
    Row("scalecom run -n 1 train.py >&-; echo $?", OK, "0", 0),
    Row("scalecom run -n 1 train.py <&- >&- 2>&-; code=$?; echo $code", OK, "0", 0),
    Row("scalecom run -n 1 train.py 2>&-", OK, "[worker 0] trained", 0),
    Row("export PYTHONIOENCODING=ascii; scalecom run -n 1 train.py",
        {"train.py": r"import sys; sys.stdout.buffer.write(b'caf\xc3\xa9 \xff')"},
        r"[worker 0] caf\xe9 \ufffd", 0),
    Row("mkdir gone; cd gone; rmdir ../gone; scalecom run -n 1 ../train.py", OK, "trained", 0),
]  # fmt: skip


@names(SHELL)
def test_run_in_a_shell(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with given(row, monkeypatch):
        process = subprocess.run(
            [
                "bash",
                "-c",
                f'scalecom() {{ {sys.executable} -m tf_scalecom "$@"; }}; {row.command}',
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env={**os.environ, "PYTHONUTF8": "0"},
        )
    check(row, process.returncode, process.stdout, process.stderr)


@contextlib.contextmanager
def small_disk(size="64k") -> Iterator[None]:
    """A folder "disk" that is soon full."""
    Path("disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", "disk"]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root, to make a disk that is soon full")
    try:
        yield
    finally:
        subprocess.run(["umount", "disk"], check=True)


MUCH = "print(200_000 * 'x', flush=True)"
DISK = [
    Row("run -n 1 --quiet --log-dir disk train.py", {"train.py": MUCH}, "the disk of disk is", 1),
    Row("run -n 1 --quiet --log-dir disk train.py",
        {"train.py": f"try: {MUCH}\nexcept OSError: pass"}, "the disk of disk is full", 0),
]  # fmt: skip


@names(DISK)
def test_run_on_a_full_disk(row, answer):
    with small_disk():
        answer(row)


# --- doctor --------------------------------------------------------------------------------------

VERSIONS = {
    "tf_scalecom": sc.__version__, "tensorflow": tf.__version__, "keras": keras.__version__,
}  # fmt: skip


def call(**changes):
    """What a doctor answers."""
    facts = {"--bandwidth": False, "versions": VERSIONS, "workers": {}}
    message = {"tf_scalecom doctor": "worker 1", "facts": facts, "stream": False} | changes
    return json.dumps(message).encode() + b"\n"


def versions(**changes):
    return {"--bandwidth": False, "versions": {**VERSIONS, **changes}, "workers": {}}


STRANGER = "an answer that is no worker's: another program listens there"
HTTP2 = b"\0\0\x12\x04\0\0\0\0\0"
ANSWERS = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", STRANGER, 1),
    (b"SSH-2.0-OpenSSH_9.2\r\n", STRANGER, 1),
    (b"\n", STRANGER, 1),
    (bytes(range(256)), STRANGER, 1),
    (bytes(100), STRANGER, 1),
    (b"x" * 100_000, STRANGER, 1),
    (b"[" * 60_000 + b"\n", STRANGER, 1),
    (b'{"a":' * 10_000 + b"\n", STRANGER, 1),
    (b"9" * 5_000 + b"\n", STRANGER, 1),
    (b"NaN\n", STRANGER, 1),
    (b"null\n", STRANGER, 1),
    (b"\xff\xfe{\0}\0\n", STRANGER, 1),
    (b"{}\n", STRANGER, 1),
    (call(facts=None), STRANGER, 1),
    (call(facts=[]), STRANGER, 1),
    (call(facts={}), STRANGER, 1),
    (call(facts={**versions(), "--bandwidth": 1}), STRANGER, 1),
    (call(facts={**versions(), "versions": []}), STRANGER, 1),
    (call(facts=versions(keras={})), STRANGER, 1),
    (call(facts=versions(keras=None)), STRANGER, 1),
    (call(facts=versions(**{f"of {i}": "1" for i in range(2_000)})), STRANGER, 1),
    (call(stream=None), STRANGER, 1),
    (call(**{"tf_scalecom doctor": ["worker 1"]}), STRANGER, 1),
    (b'{"tf_scalecom doctor": "worker 1"}\n', STRANGER, 1),
    (call(**{"tf_scalecom doctor": "\x1b]0;me\x07"}), r"\x1b]0;me\x07 answers there", 1),
    (call(**{"tf_scalecom doctor": "w" * 60_000}), f"{'w' * 400}... answers there", 1),
    (call(facts=versions(keras="3\x1b[2J\nPROBLEM \u202e")), r"3\\x1b[2J\\nPROBLEM \\u202e", 1),
    (call(facts=versions(keras="\ud800")), r"\\ud800", 1),
    (HTTP2, "answers, but not as a doctor", 0),
    (b"", "answers, but not as a doctor", 0),
]
CLUSTER = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}

DOCTOR = [
    *(Row("doctor --timeout 0.1", {"@peer": said}, line, code) for said, line, code in ANSWERS),
    Row("doctor", {"$TF_CONFIG": "{'cluster'}"}, "PROBLEM", 1),
    Row("doctor", {"$TF_CONFIG": "[" * 100_000}, "Expected TF_CONFIG to be JSON", 1),
    Row("doctor", {"$TF_CONFIG": NINES}, "Expected TF_CONFIG to be JSON", 1),
    Row("doctor", {"$TF_CONFIG": "null"}, "a JSON object with an object `cluster`", 1),
    Row("doctor", {"$TF_CONFIG": '{"cluster": {"worker": "a:1"}, "task": {}}'}, "a list of", 1),
    Row("doctor", {"$TF_CONFIG": json.dumps({**CLUSTER, "task": 0})}, "an object `task`", 1),
    Row("doctor", {"$TF_SCALECOM_BACKEND": "fast"}, "Expected TF_SCALECOM_BACKEND to be", 1),
    Row("doctor", {"$CXX": "  "}, "TF_CONFIG", 0),
    Row("doctor", {"$CXX": "nothing -x"}, "none", 0),
    Row("doctor --timeout soon", {}, "expected a number of seconds from 0", 2),
    Row("doctor --timeout=-1", {}, "expected a number of seconds from 0", 2),
    Row("doctor --timeout inf", {}, "expected a number of seconds from 0", 2),
    Row("doctor nothing.py", {}, "nothing.py: [Errno 2] No such file", 1),
    Row("doctor mine.py", {"mine.py": FOLDER}, "received mine.py, which is no file", 1),
    Row("doctor mine.py", {"mine.py": PIPE}, "received mine.py, which is no file", 1),
    Row("doctor mine.py", {"mine.py": Link("/dev/zero")}, "received mine.py, which is no", 1),
    Row("doctor mine.py", {"mine.py": b"\xff\xfe"}, "Expected a Python script", 1),
    Row("doctor mine.py", {"mine.py": b"\0"}, "Expected a Python script", 1),
    Row("doctor mine.py", {"mine.py": "(" * 10_000}, "Expected a Python script", 1),
    Row("doctor mine.py", {"mine.py": "a" + ".a" * 10_000}, "mine.py", 1),
    Row(f"doctor {'a' * 300}.py", {}, "File name too long", 1),
]


@names(DOCTOR)
def test_doctor(row, answer):
    with contextlib.suppress(AttributeError):
        sc.ops.backend.cache_clear()
    answer(row)
    sc.ops.backend.cache_clear()


# --- plan ----------------------------------------------------------------------------------------

SMALL = """
import keras
def build():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
"""
HERE = "-n 8 --gbits 1 --memory-gbytes 10 --compute-ms 3"
MEASURED = "-n 8 --gbits 1 --memory-gbytes 10 --batch"


def built(*lines):
    """A module with such a function."""
    return {"mine.py": "import keras\ndef build():\n" + "".join(f"    {line}\n" for line in lines)}


FAILS = """
import keras
class Layer(keras.layers.Dense):
    def call(self, inputs):
        if keras.backend.is_keras_tensor(inputs):
            return super().call(inputs)
        raise RuntimeError("of my own")
def build():
    return keras.Sequential([keras.Input((8,)), Layer(8)])
"""

PLAN = [
    *(
        Row(f"plan mine:build {HERE} {flag}={value}", {"mine.py": SMALL}, line, 2)
        for flag, values, line in (
            ("--gbits", ("1e-320", "0", "-1", "1e320", "nan", "x", ""), "from 1e-09 to 1e+12"),
            ("--memory-gbytes", ("0", "1e-320", "inf"), "from 1e-09 to 1e+12"),
            ("--inside-gbits", ("0", "1e300"), "from 1e-09 to 1e+12"),
            ("--latency-us", ("-1", "1e300", "x"), "from 0 to 1e+12"),
            ("--host-ns", ("-1", "1e300", "x"), "from 0 to 1e+12"),
            ("--num-workers", ("0", "1.5", NINES, "1" * 14), "from 1 to 1,000,000,000,000"),
            ("--replicas-per-worker", ("0", NINES), "from 1 to 1,000,000,000,000"),
            ("--bytes-per-pack", ("0", NINES), "from 1 to 1,000,000,000,000"),
            ("--ratios", ("", "0", "100,", "100,nan", "1e13", "car"), "from 1 to 1e+12"),
            ("--ranks", ("", "0", "2,", "1.5"), "from 1 to 1,000,000,000,000"),
            ("--batch", ("2",), "not allowed with argument --compute-ms"),
        )
        for value in values
    ),
    Row(f"plan mine:build {MEASURED} 0", {"mine.py": SMALL}, "from 1 to", 2),
    Row(f"plan mine:build {MEASURED} {NINES}", {"mine.py": SMALL}, "from 1 to", 2),
    Row(f"plan mine:build {MEASURED} {10**12}", {"mine.py": SMALL}, "1,000,000,000,000 samp", 2),
    Row(f"plan mine:build {MEASURED} 2", {"mine.py": FAILS}, "(line 7 of mine.py)", 2),
    Row(f"plan mine:build {HERE}", built("return 1 / 0"), "by zero (line 3 of mine.py)", 2),
    Row(f"plan mine:build {HERE}", built("return keras.layers.Dense(-3)"), "(line 3 of mine.", 2),
    Row(f"plan mine:build {HERE}",
        built("return keras.layers.Reshape((7,))(keras.Input((4,)))"),
        "size of the tensor must be unchanged", 2),
    Row(f"plan mine:build {HERE}", built(r"raise OSError('a\n\x1b[1mb')"),
        "OSError: a b (line 3 of mine.py)", 2),
    Row(f"plan mine:build {HERE}", built("raise ValueError('x' * 10**6)"), "(line 3 of mine.", 2),
    Row(f"plan mine:build {HERE}", built("assert False"), "AssertionError (line 3 of mine", 2),
    Row(f"plan mine:build {HERE}", built("exit(7)"), "SystemExit: 7 (line 3 of mine.py)", 2),
    Row(f"plan mine:build {HERE}", built("return build()"), "RecursionError", 2),
    Row(f"plan mine:build {HERE}", built("raise KeyboardInterrupt"), "interrupted", 130),
    Row(f"plan mine:build {HERE}", built("pass"), "to return a keras.Model; received NoneType", 2),
    Row(f"plan mine:build {HERE}", built("return keras.Sequential()"), "trainable variables", 2),
    Row(f"plan mine:build {HERE}", {"mine.py": "def build(size): pass"}, "missing 1 required", 2),
    Row(f"plan mine:build {HERE}", {"mine.py": "def build(:"}, "(line 1 of mine.py)", 2),
    Row(f"plan mine:build {HERE}", {"mine.py": b"\xff"}, "SyntaxError", 2),
    Row(f"plan mine:build {HERE}", {"mine.py": "build = 3"}, "'int' object is not callable", 2),
    Row(f"plan mine:other {HERE}", {"mine.py": ""}, "has no attribute 'other'", 2),
    Row(f"plan no_such:build {HERE}", {}, "No module named 'no_such'", 2),
    Row(f"plan ..:build {HERE}", {}, "received '..:build'. Write it like train:build_model", 2),
    Row(f"plan : {HERE}", {}, "received ':'. Write it like train:build_model", 2),
    Row(f"plan '' {HERE}", {}, "received ''. Write it like train:build_model", 2),
    Row(f"plan a.keras {HERE}", {}, "'a.keras', which is no file here", 2),
    Row(f"plan {'a' * 300}.keras {HERE}", {}, "which is no file here", 2),
    *(
        Row(f"plan a.keras {HERE}", {"a.keras": what}, "which is no file here", 2)
        for what in (FOLDER, PIPE, Link("a.keras"), Link("/dev/zero"))
    ),
    *(
        Row(f"plan a.keras {HERE}", {"a.keras": what}, "a file of another kind", 2)
        for what in (b"", b"PK", b"x" * 1_000, bytes(1_000))
    ),
    Row(f"plan a.keras {HERE}", {"a.keras": b"PK\5\6" + bytes(18)}, "a damaged file", 2),
    *(
        Row(f"plan mine:build {HERE} --plot {path}", {"mine.py": SMALL, **there}, line, 2)
        for path, there, line in (
            ("a.bmp", {}, "expected --plot to end in .png, .pdf, .svg"),
            ("a", {}, "expected --plot to end in .png, .pdf, .svg"),
            ("/dev/full", {}, "expected --plot to end in .png, .pdf, .svg"),
            ("nowhere/a.png", {}, "in a folder that is there; received nowhere/a.png"),
            ("mine.py/a.png", {}, "in a folder that is there; received mine.py/a.png"),
            ("a.png", {"a.png": FOLDER}, "to be a file that can be written; received a.png"),
            ("a.png", {"a.png": PIPE}, "to be a file that can be written; received a.png"),
        )
    ),
]  # fmt: skip


@names(PLAN)
def test_plan(row, answer, monkeypatch):
    if "--plot" in row.command:
        pytest.importorskip("matplotlib")
    answer(row)


@pytest.mark.parametrize("command", ["doctor", f"plan mine:build {HERE}"])
def test_what_is_there_for_its_output_fails_without_it(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(SMALL)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(shlex.split(command)) == 1
    assert "no more output: No space left on device" in capsys.readouterr().err


# --- simulate ------------------------------------------------------------------------------------

TASK = Path(__file__).parents[1] / "simulated_task.py"
RUN_OPTIONS = {
    "learners": 2, "batch_size": 4, "steps": 4, "record_every": 2, "evaluate_every": 2,
    "compression_ratio": 10,
}  # fmt: skip
CONFIG = SimulationConfig(**RUN_OPTIONS)
OPTIONS = " ".join(f"--{name.replace('_', '-')}={value}" for name, value in RUN_OPTIONS.items())
SIMULATE = f"simulate mine.py --out out {OPTIONS}"


def task(*lines, base="LinearClasses"):
    """A task's file, of a class with such lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return {
        "mine.py": "import keras, numpy as np, tensorflow as tf\n"
        f"from simulated_task import LinearClasses\nclass Task({base}):\n{body}\n"
        "def build_task(): return Task()\n"
    }


ZEROS = "def loss(self, model, batch): return 0.0 * tf.reduce_mean(model(batch[0]))"
SIMULATED = [
    *(
        Row(SIMULATE, task(f"train_size = {size}"), "a number of examples, an integer >= 1", 2)
        for size in ("0", "-1", "'many'", "None", "2.5", "float('nan')")
    ),
    Row(SIMULATE, task("train_size = property(lambda self: 1 / 0)"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task("def __init__(self): open('/nothing')"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task("def __init__(self): np.zeros(3).reshape(7)"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task(r"def __init__(self): raise ValueError('a\n\x1b[1mb')"), "Error: a b (", 2),
    Row(SIMULATE, task("def __init__(self): exit(3)"), "SystemExit: 3 (line 4 of mine.py)", 2),
    Row(SIMULATE, task("def build_model(self): return 1 / 0"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task("def build_model(self): pass"), "build_model() of the task to return a", 2),
    Row(SIMULATE, task("def batch(self, indices): return 1 / 0"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task("def batch(self, indices): pass"), "Expected batch() of the task to wo", 2),
    Row(SIMULATE, task("def batch(self, indices): return 'x'"), "Expected loss() of the task", 2),
    Row(SIMULATE, task("def loss(self, model, batch): return 1 / 0"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task("def loss(self, model, batch): return model(batch[0])"), "return a numb", 2),
    Row(SIMULATE, task("def loss(self, model, batch): return 3"), "loss() of the task to retu", 2),
    Row(SIMULATE, task("def evaluate(self, model): return 1 / 0"), "(line 4 of mine.py)", 2),
    Row(SIMULATE, task("def evaluate(self, model): pass"), "Expected evaluate() of the task", 2),
    Row(SIMULATE, task("def evaluate(self, model): return {'a': 'x'}"), "evaluate() of the ta", 2),
    Row(SIMULATE, task("def evaluate(self, model): return {'step': 1}"), "names of their own", 2),
    Row(SIMULATE, task("def evaluate(self, model): return {1: 1}"), "names of text for figures", 2),
    Row(SIMULATE, task(r"def evaluate(self, model): return {'\ud800': 1}"), "names of text for", 2),
    Row(SIMULATE, task("def evaluate(self, model): return {f'{np.random.rand()}': 1}"),
        "Expected the same figures at each evaluation", 2),
    Row(SIMULATE, task(r"def evaluate(self, model): return {'\x1b[2J': 1}"), r"\x1b[2J 1", 0),
    Row(SIMULATE, task(ZEROS), "step 4 of 4", 0),
    Row(f"{SIMULATE} --method power_sgd --rank 1000", task("pass"), "step 4 of 4", 0),
    Row(f"{SIMULATE} --method owners_top_k --selection exact", task("pass"), "OwnersTopK: exp", 2),
    Row(f"{SIMULATE} --delay 4", task("pass"), "an integer from 0, below steps; received 4", 2),
    Row(f"{SIMULATE} --batch-size 9999999999999", task("pass"), "Expected batch() of the task", 2),
    Row(f"{SIMULATE} --steps {NINES}", task("pass"), "--steps: expected an integer", 2),
    Row(f"{SIMULATE} --learners 257", task("pass"), "expected 1 to 256; received 257", 2),
    Row(f"{SIMULATE} --learning-rate nan", task("pass"), "expected a number > 0", 2),
    Row(f"{SIMULATE} --save-minutes=-1", task("pass"), "expected a number from 0 to", 2),
    Row(f"{SIMULATE} --batch no.txt", task("pass"), "Expected --batch to name a", 2),
    Row(f"{SIMULATE} --batch b", {**task("pass"), "b": PIPE}, "Expected --batch to name a", 2),
    Row(f"{SIMULATE} --batch b", {**task("pass"), "b": b"\xff"}, "Expected --batch to name a", 2),
    Row(f"{SIMULATE} --batch b", {**task("pass"), "b": "'"}, "b:1: No closing quotation", 2),
    Row(f"{SIMULATE} --batch b", {**task("pass"), "b": ""}, "to have lines of options", 2),
    Row(SIMULATE, {**task("pass"), "out": ""}, "Expected a folder that can be written", 2),
    Row(SIMULATE, {**task("pass"), "out": Link("out")}, "Expected a folder that can be written", 2),
    Row("simulate mine.py --out ''", task("pass"), "expected a folder, received ''", 2),
    Row("simulate nothing.py", {}, "which is not a file here", 2),
    Row("simulate mine.py", {"mine.py": FOLDER}, "which is not a file here", 2),
    Row("simulate mine.py", {"mine.py": PIPE}, "which is not a file here", 2),
    Row(f"simulate {'a' * 300}.py", {}, "which is not a file here", 2),
    Row("simulate mine.py", {"mine.py": ""}, "to define build_task()", 2),
    Row("simulate mine.py", {"mine.py": "def f(:"}, "(line 1 of mine.py)", 2),
    Row("simulate mine.py", {"mine.py": b"\0"}, "SyntaxError", 2),
    Row("simulate mine.py", {"mine.py": "import no_such"}, "No module named 'no_such' (line 1", 2),
    Row("simulate mine.py", {"mine.py": "def build_task(): pass"}, "a NoneType without train_", 2),
]  # fmt: skip


@names(SIMULATED)
def test_simulate(row, answer):
    answer(row)


# Files of a run, and what is in their place: of a run that is done, or half.


def arrays(**changes):
    """Makes a state with other arrays, or without those that are None."""

    def changed(content):
        with np.load(io.BytesIO(content)) as whole:
            kept = {**whole, **changes}
        file = io.BytesIO()
        np.savez(file, **{name: array for name, array in kept.items() if array is not None})
        return file.getvalue()

    return changed


def flipped(content):
    damaged = bytearray(content)
    damaged[len(damaged) // 3] ^= 255
    return bytes(damaged)


def values(**changes):
    """Makes JSON with other values, or without those that are None."""

    def changed(content):
        kept = {**json.loads(content), **changes}
        return json.dumps({k: v for k, v in kept.items() if v is not None}).encode()

    return changed


def text(old, new):
    return lambda content: content.replace(old, new, 1)


ANY_FILE = [
    FOLDER, PIPE, Link("/dev/zero"), Link("nothing"), b"", b"\0" * 100, bytes(range(256)),
    b"\xff\xfe", b"[" * 100_000, b"9" * 5_000, b"\x1b]0;title\x07", lambda c: c[: len(c) // 2],
]  # fmt: skip
JSON = [b"null", b"12", b'"x"', b"[]", b"[[]]", b'[["step", 4]]', b"{"]
CSV = [
    text(b"step", b"stop"), text(b"\n2,", b"\ntwo,"), text(b"\n2,", b"\n2.5,"),
    text(b"\n2,", b"\n-2,"), text(b"\n2,", b"\n3,"), text(b"\n2,", b"\nNaN,"),
    text(b"\n2,", b"\n" + b"9" * 5_000 + b","), text(b"\n2,", b"\n2,x,"), text(b"\n2,", b"\n"),
    text(b"\n2,", b'\n"2,'), text(b"\n2,", b"\n\x1b[2J,"), lambda c: c.partition(b"\n")[0] + b"\n",
    lambda c: c.partition(b"\n")[2], lambda c: c + c.splitlines(keepends=True)[1],
]  # fmt: skip
FIRST = "model/0"  # an array of a state
DAMAGES = {
    "config.json": [*ANY_FILE, *JSON],
    "result.json": [
        *ANY_FILE, *JSON, b"{}", values(step=None), values(step=2), values(step=4.5),
        values(step="4"), values(step=True), values(step=10**400), values(diverged=None),
        values(diverged=0), values(diverged=True), values(bytes_total=-1),
        values(bytes_total=float("nan")), values(accuracy="x"), values(accuracy=[1]),
    ],
    "state.npz": [
        *ANY_FILE, flipped, arrays(step=None), arrays(step=-1), arrays(step=5), arrays(step=1.5),
        arrays(step="x"), arrays(step=np.nan), arrays(step=[1, 2]), arrays(bytes_total=None),
        arrays(bytes_total=np.nan), arrays(bytes_total=-1.0), arrays(bytes_total="x"),
        arrays(**{FIRST: None}), arrays(**{FIRST: np.zeros(3, np.float32)}),
        arrays(**{FIRST: np.zeros((40, 60))}), arrays(**{FIRST: "x"}),
        arrays(**{FIRST: np.full((40, 60), np.nan, np.float32)}), arrays(**{FIRST: [None]}),
    ],
    "records.csv": [*ANY_FILE, *CSV, None],
    "evaluations.csv": [*ANY_FILE, *CSV, None],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run: done, and to go on with from step 2."""
    folders = [tmp_path_factory.mktemp(name) / CONFIG.name for name in ("done", "half")]
    learned = LinearClasses()
    learned.task_name = "mine"
    for folder in folders:
        run(learned, CONFIG, folder, report=lambda line: None)
    simulation = Simulation(learned, CONFIG)
    simulation.advance()
    simulation.advance()
    run_files.save_state(folders[1], simulation)
    (folders[1] / "result.json").unlink()
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"), [(name, damage) for name, all_of in DAMAGES.items() for damage in all_of]
)
def test_simulate_with_a_damaged_file(name, damage, runs, answer, monkeypatch, tmp_path):
    learned = LinearClasses()
    learned.task_name = "mine"
    monkeypatch.setattr("tf_scalecom.simulate.task.load_task", lambda path: learned)
    folder = tmp_path / "out" / CONFIG.name
    shutil.copytree(runs[0 if name == "result.json" else 1], folder)
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    content = damage(content) if callable(damage) else damage
    others = {file: file.read_bytes() for file in folder.iterdir()}
    line = f"error: Expected out/{CONFIG.name}"
    answer(Row(SIMULATE, {} if content is None else {str(path): content}, line, 2))
    assert {file: file.read_bytes() for file in folder.iterdir() if file != path} == others
    if isinstance(content, bytes):
        assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["records.csv", "evaluations.csv"])
def test_no_curves_are_drawn_of_a_damaged_table(name, runs, tmp_path):
    pytest.importorskip("matplotlib")
    folder = shutil.copytree(runs[0], tmp_path / "run")
    content = (folder / name).read_bytes()
    for step in (b"two", b"2.5", b"NaN", b"inf", b"", b"9" * 400):
        (folder / name).write_bytes(text(b"\n2,", b"\n" + step + b",")(content))
        with pytest.raises(run_files.UnusableFolder, match=f"Expected {folder / name} to be as"):
            plots.draw([folder], tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_curves_have_the_names_that_a_task_gives(runs, tmp_path):
    pytest.importorskip("matplotlib")
    folder = shutil.copytree(runs[0], tmp_path / "run")
    content = (folder / "evaluations.csv").read_bytes()
    (folder / "evaluations.csv").write_bytes(text(b"accuracy", b"$ a $\\frac$")(content))
    assert plots.draw([folder], tmp_path / "curves.png")


NOT_ASCII = """
from pathlib import Path
from tf_scalecom.simulate.run_files import Table, read_table
table = Path("table.csv")
Table(table, None).append({"step": 1, "\\u00e9": 2.0})
assert read_table(table) == [{"step": "1", "\\u00e9": "2.0"}]
"""


@pytest.mark.slow
def test_tables_have_all_letters_in_any_locale(tmp_path):
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run(
        [sys.executable, "-c", NOT_ASCII],
        check=True,
        cwd=tmp_path,
        env={**os.environ, **plain, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=LIMIT_SECONDS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", ["16k", "64k"])
def test_simulate_on_a_full_disk_goes_on_where_there_is_room(size, answer, runs, tmp_path):
    """Of whatever file the disk is full, what is finished stays, and the same command goes on."""
    command = f"simulate {TASK} --out disk {OPTIONS} --save-minutes 0 --seed 0,1"
    with small_disk(size):
        answer(Row(command, {}, "No space left on device. Make room, or choose", 2))
        finished = {path: path.read_bytes() for path in Path("disk").glob("*/result.json")}
        subprocess.run(["mount", "-o", "remount,size=8m", "disk"], check=True)
        answer(Row(command, {}, "run 2 of 2", 0))
        assert all(path.read_bytes() == content for path, content in finished.items())
        assert len(list(Path("disk").glob("*/result.json"))) == 2
