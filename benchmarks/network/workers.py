"""The processes that are measured: one in each namespace, commanded over pipes."""

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from namespaces import INTERFACE, Network

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(__file__).resolve().parent
TORCH_PYTHON = FOLDER / ".venv" / "bin" / "python"

_GUARD = ROOT / "tf_scalecom" / "launch" / "die_with_parent.py"
_PORTS = {"tf": 23456, "torch": 23457}
_LOG_LINES = 25


class WorkerError(Exception):
    """A worker ended, or did not answer in time."""


class Workers:
    """One worker process of a framework in each namespace of a network; a context manager.

    They end with the `with` block and, by the kernel's hand, with this process.
    """

    def __init__(self, framework: str, network: Network, model: str, logs: pathlib.Path):
        self._framework = framework
        self._logs = logs
        self._processes = []
        self._pending = {}
        logs.mkdir(parents=True, exist_ok=True)
        program = {
            "tf": [sys.executable, str(FOLDER / "tf_worker.py")],
            "torch": [str(TORCH_PYTHON), str(FOLDER / "torch_worker.py")],
        }[framework]
        try:
            for i in range(len(network.names)):
                self._start(i, network.command(i, *program, "--model", model), network)
        except BaseException:
            self.kill()
            raise

    def _start(self, index, command, network):
        with self._log(index).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *command],
                env={**os.environ, **_environment(self._framework, index, network)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches it through this process alone
            )
        self._processes.append(process)
        self._pending[process] = b""

    def ask(self, limit: float, **command) -> list[dict]:
        """Gives all workers a command; returns their answers.

        Args:
            limit: seconds until the last answer.
            command: see `serve`.

        Raises:
            WorkerError: A worker ended instead, or the limit has passed.
        """
        line = json.dumps(command).encode() + b"\n"
        deadline = time.monotonic() + limit
        for process in self._processes:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                self._fail(process, command)
        while waiting := [p for p in self._processes if not self._pending[p].endswith(b"\n")]:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([p.stdout for p in waiting], [], [], left)
            if not ready:
                self._fail(waiting[0], command, f"no answer in {limit:.0f} s")
            for process in waiting:
                if process.stdout in ready:
                    part = os.read(process.stdout.fileno(), 1 << 16)
                    if not part:
                        self._fail(process, command)
                    self._pending[process] += part
        answers = [json.loads(self._pending[process]) for process in self._processes]
        self._pending = dict.fromkeys(self._processes, b"")
        return answers

    def _fail(self, process, command, what=None):
        index = self._processes.index(process)
        if what is None:
            what = f"its end, with exit code {process.wait()}"
        lines = self._log(index).read_text(errors="replace").splitlines()[-_LOG_LINES:]
        raise WorkerError(
            f"Expected {self._framework} worker {index} to answer {command}; received {what}. "
            f"{self._log(index)} ends with:\n" + "\n".join(lines)
        )

    def _log(self, index):
        return self._logs / f"{self._framework}-{index}.log"

    def cpu_seconds(self) -> float:
        """Processor time that the workers have used so far."""
        ticks = 0
        for process in self._processes:
            stat = pathlib.Path(f"/proc/{process.pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Ends the workers. By SIGKILL: in a collective, nothing less ends TensorFlow."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exc_info) -> None:
        self.kill()


def _environment(framework, index, network):
    port = _PORTS[framework]
    if framework == "torch":
        return {
            "RANK": str(index),
            "WORLD_SIZE": str(len(network.names)),
            "MASTER_ADDR": network.addresses[0],
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
        }
    cluster = {"worker": [f"{address}:{port}" for address in network.addresses]}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def set_up_torch(say: Callable[[str], None]) -> None:
    """Installs PyTorch into an environment of its own, once."""
    done = TORCH_PYTHON.parent.parent / "installed"
    requirements = FOLDER / "requirements.txt"
    if done.exists() and done.read_text() == requirements.read_text():
        return
    say(f"installing {requirements.name} into {done.parent}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(done.parent)], check=True)
    subprocess.run(
        [str(TORCH_PYTHON), "-m", "pip", "--quiet", "install", "-r", str(requirements)], check=True
    )
    done.write_text(requirements.read_text())
