"""Training under a real SLURM and a real Ray, disturbed; `make test-clusters` runs these."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import h5py
import pytest
from package_source import ROOT, run
from scheduled_training import DISTURBED_EPOCH, EPOCHS
from worker_cluster import WORKER_ENV

pytestmark = [pytest.mark.clusters, pytest.mark.slow, pytest.mark.multi_worker]

CLUSTERS, TESTS = ROOT / "clusters", ROOT / "tests"
ENVIRONMENT = {**WORKER_ENV, "PYTHONPATH": str(ROOT)}
RUN_SECONDS = 600


def job_folder(folder: Path, *asked_for) -> Path:
    """Makes a folder to start a job from, with files that ask for disturbances."""
    folder.mkdir()
    (folder / "train.py").symlink_to(TESTS / "scheduled_training.py")
    for name in asked_for:
        (folder / name).touch()
    return folder


def ends(folder: Path) -> list:
    """What came out of training, on each worker."""
    return [json.loads((folder / f"end-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The ends of a training that nothing happened to, with the seed of a SLURM's first job."""
    folder = job_folder(tmp_path_factory.mktemp("job") / "undisturbed")
    run(
        sys.executable, "-m", "tf_scalecom", "run", "-n", "2", "train.py", "--backup_dir", "backup",
        cwd=folder, **ENVIRONMENT, TF_SCALECOM_SEED="1",
    )  # fmt: skip
    return ends(folder)


# SLURM.


def why_no_slurm() -> str | None:
    """What this machine lacks for `local_slurm.sh`; None if nothing."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "nsenter", "unshare")
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm munge iproute2 util-linux"
    namespaces = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--net", "--uts", "ip", "link", "add",
         "switch", "type", "bridge"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if namespaces.returncode:
        return f"needs root, and namespaces of one's own: {namespaces.stderr.strip()}"
    return None


@pytest.fixture(scope="module")
def slurm():
    """Runs a shell script in a folder, beside a SLURM of its own; returns the log of job 1."""
    if reason := why_no_slurm():
        pytest.skip(reason)

    def run_beside_slurm(script, folder):
        logs = folder / "slurm"
        logs.mkdir()
        python = Path(sys.executable).parent
        # A script waits for itself; this is for one that waits for ever, and ends all of SLURM.
        run(
            "timeout", "--signal=KILL", str(RUN_SECONDS),
            TESTS / "local_slurm.sh", logs, "bash", "-euc", script,
            cwd=folder, timeout=RUN_SECONDS + 60,
            **ENVIRONMENT, TRAIN=str(CLUSTERS / "train.sbatch"),
            PATH=f"{python}:{os.environ['PATH']}",
        )  # fmt: skip
        return (folder / "slurm-1.out").read_text()

    return run_beside_slurm


UNTIL_DONE = "while [[ -n $(squeue --noheader) ]]; do sleep 0.5; done"
UNTIL_UNDER_WAY = "until [[ -e under-way ]]; do sleep 0.2; done"


def epochs(log: str) -> list[int]:
    """Those that were begun, in their order."""
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("epoch ")]


# That of the disturbance is begun anew.
EPOCHS_WITH_A_RESTART = [*range(DISTURBED_EPOCH + 1), *range(DISTURBED_EPOCH, EPOCHS)]


def test_a_job_of_slurm_with_a_killed_task_is_queued_again(slurm, undisturbed, tmp_path):
    folder = job_folder(tmp_path / "job", "kill")
    log = slurm(f'sbatch --nodes=2 "$TRAIN"; {UNTIL_DONE}; scontrol show job 1 >job.txt', folder)
    assert "srun: error: n2: task 1: Killed" in log
    assert "Restarts=1" in (folder / "job.txt").read_text()
    assert epochs(log) == EPOCHS_WITH_A_RESTART
    assert ends(folder) == undisturbed


def test_a_job_that_slurm_preempts_ends_by_itself_and_goes_on_later(slurm, undisturbed, tmp_path):
    folder = job_folder(tmp_path / "job", "slow")
    log = slurm(
        f'sbatch --nodes=2 "$TRAIN"; {UNTIL_UNDER_WAY}; '
        f"sbatch --partition=urgent --nodes=2 --output=urgent.out --wrap hostname; {UNTIL_DONE}",
        folder,
    )
    for rank in (0, 1):
        assert f"task {rank}: Exited with exit code 143" in log
    assert (folder / "urgent.out").read_text() == "n1\n"
    assert epochs(log) == EPOCHS_WITH_A_RESTART
    assert ends(folder) == undisturbed


def test_a_job_that_is_cancelled_is_not_queued_again(slurm, tmp_path):
    folder = job_folder(tmp_path / "job", "slow")
    log = slurm(
        f'sbatch --nodes=2 "$TRAIN"; {UNTIL_UNDER_WAY}; scancel 1; {UNTIL_DONE}; '
        "scontrol show job 1 >job.txt",
        folder,
    )
    assert "tf_scalecom: asked to end (SIGTERM)" in log
    state = (folder / "job.txt").read_text()
    assert "JobState=CANCELLED" in state and "Restarts=0" in state


# Ray.

RAY = ROOT / "build" / "ray"
RAY_EPOCHS = 60


class RayTraining:
    """`clusters/ray_train.py` on a Ray of this machine.

    Args:
        folder: made for it.
    """

    def __init__(self, folder: Path):
        folder.mkdir()
        self._storage, self._log_path = folder / "storage", folder / "log"
        self._disturbed_groups = 0
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [RAY / "bin" / "python", CLUSTERS / "ray_train.py", "--storage", self._storage,
                 "--epochs", str(RAY_EPOCHS), "--seed", "1"],
                env={
                    **os.environ, **ENVIRONMENT,
                    "HOME": str(folder),  # where Ray keeps a token
                    "RAY_DEDUP_LOGS": "0",
                    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200",
                },
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def workers(self) -> list[int]:
        """Process ids of all that were started so far."""
        found = re.findall(r"\(RayTrainWorker pid=(\d+)\)", self.log())
        return list(dict.fromkeys(map(int, found)))

    def disturb(self, signum: int) -> None:
        """Signals a worker, once two have started that were not there before, and backed up."""
        started = self._disturbed_groups * 2 + 2
        before = self._last_backup()
        self._wait(lambda: len(self.workers()) >= started and self._last_backup() > before)
        os.kill(self.workers()[-1], signum)
        self._disturbed_groups += 1

    def wait(self) -> None:
        """Waits for the end of training, which must be a good one."""
        self._wait(lambda: self.process.poll() is not None)
        assert self.process.returncode == 0, self.log()[-5000:]

    def weights(self) -> dict[str, bytes]:
        """Those of the model's layers, by name; residuals are of whoever has saved it last."""
        found = {}

        def note(name, item):
            if isinstance(item, h5py.Dataset) and not name.startswith("optimizer"):
                found[name] = item[()].tobytes()

        with zipfile.ZipFile(self._storage / "model.keras") as model:
            content = io.BytesIO(model.read("model.weights.h5"))
        with h5py.File(content) as weights:
            weights.visititems(note)
        assert found
        return found

    def end(self) -> None:
        """Ends Ray, too, if it still runs."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _last_backup(self):
        complete = self._storage.glob("backup/backup-*/backup.json")
        return max((path.parent.name for path in complete), default="")

    def _wait(self, condition):
        deadline = time.monotonic() + RUN_SECONDS
        while not condition():
            assert time.monotonic() < deadline and not self.process.poll(), self.log()[-5000:]
            time.sleep(0.05)


@pytest.mark.skipif(
    not (RAY / "installed").exists(), reason="needs Ray in build/ray: make test-clusters"
)
def test_ray_starts_workers_again_after_a_kill_and_a_request_to_end(tmp_path):
    training = RayTraining(tmp_path / "disturbed")
    try:
        training.disturb(signal.SIGKILL)
        training.disturb(signal.SIGTERM)
        training.wait()
    finally:
        training.end()
    assert len(training.workers()) == 3 * 2
    # Each start but the last made a backup at least; the last one went on from there.
    started_from = re.findall(r"replicas 2, loss .*, from epoch (\d+)", training.log())
    assert started_from and min(map(int, started_from)) >= 2
    undisturbed = RayTraining(tmp_path / "undisturbed")
    try:
        undisturbed.wait()
    finally:
        undisturbed.end()
    assert training.weights() == undisturbed.weights()
