"""TF_CONFIG from what SLURM tells a task: `srun python -m tf_scalecom.slurm python train.py`.

TensorFlow's own `SlurmClusterResolver` counts GPUs and fails where there are none; and it sorts
hosts by name, so that beyond nine of them (n1, n10, n2) a task's rank is not that of its own
address. Here hosts keep SLURM's order, and a task checks that it runs where it thinks it does.
"""

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from tf_scalecom.base.terminal import shown
from tf_scalecom.workers.addresses import expected_instead, place

# Below the range from which Linux gives ports to whoever asks for any, which starts at 32768.
_FIRST_PORT = 12000
# Jobs that share a node differ in their ports, up to this many tasks a node and jobs in a row.
_TASKS_PER_NODE = 64
_JOBS = 320
# A number has up to 9 digits, and there are up to so many hosts.
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_MOST_HOSTS = 65_536


def tf_config(environment: Mapping[str, str] = os.environ) -> dict:
    """The TF_CONFIG of this task: all tasks of the job step, by rank, are workers.

    Args:
        environment: where to read SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE,
            SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID.

    Raises:
        ValueError: a variable is missing or damaged, a node has more than 64 tasks, or tasks do not
            fill one node after the other.
    """
    hosts = _hosts(_value(environment, "SLURM_STEP_NODELIST"))
    counts = _counts(_value(environment, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(counts) or not all(1 <= count <= _TASKS_PER_NODE for count in counts):
        raise ValueError(
            f"Expected SLURM_STEP_TASKS_PER_NODE to give 1 to {_TASKS_PER_NODE} tasks for each of "
            f"the {len(hosts)} nodes in SLURM_STEP_NODELIST; received "
            f"{shown(environment['SLURM_STEP_TASKS_PER_NODE'])}. Ask for fewer tasks on a node: "
            "a worker trains on all GPUs that it is given."
        )
    port = _FIRST_PORT + _number(environment, "SLURM_JOB_ID") % _JOBS * _TASKS_PER_NODE
    places = [(node, task) for node, count in enumerate(counts) for task in range(count)]
    rank = _number(environment, "SLURM_PROCID")
    here = (_number(environment, "SLURM_NODEID"), _number(environment, "SLURM_LOCALID"))
    if rank >= len(places) or places[rank] != here:
        raise ValueError(
            "Expected tasks to fill one node after the other, as many as SLURM_STEP_TASKS_PER_NODE "
            f"says; received SLURM_PROCID={rank} as SLURM_LOCALID={here[1]} on "
            f"SLURM_NODEID={here[0]}. Start them with srun --distribution=block."
        )
    addresses = [f"{hosts[node]}:{port + task}" for node, task in places]
    _check_addresses(addresses)
    return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}


def main(command: Sequence[str] | None = None) -> None:
    """Becomes the command, with TF_CONFIG set."""
    command = list(sys.argv[1:] if command is None else command)
    if not command or not command[0]:
        raise SystemExit(
            "usage: srun python -m tf_scalecom.slurm COMMAND [argument ...]\n"
            "expected a command to run with TF_CONFIG set, received none: try python train.py"
        )
    try:
        os.environ["TF_CONFIG"] = json.dumps(tf_config())
        os.execvp(command[0], command)
    except ValueError as error:
        raise SystemExit(f"tf_scalecom.slurm: {error}") from error
    except OSError as error:
        raise SystemExit(
            f"tf_scalecom.slurm: expected a command that can be run; received {command[0]!r} "
            f"({error.strerror}). Correct it."
        ) from error


def _hosts(nodes: str) -> list[str]:
    """`n[01-03,7],m5` as n01, n02, n03, n7, m5."""
    hosts: list[str] = []
    # Commas inside brackets separate numbers, those outside hosts.
    entries = re.sub(r"\[[^\]]*\]", lambda numbers: numbers[0].replace(",", "\0"), nodes)
    for entry in entries.split(","):
        named = re.fullmatch(rf"([^\[\],\s]+)(?:\[({_RANGE}(?:\0{_RANGE})*)\])?", entry)
        numbers = list(_numbers(named[2])) if named and named[2] else [""]
        if not named or not numbers:
            raise ValueError(
                f"Expected SLURM_STEP_NODELIST like n[01-03,7] or a,b; received {shown(nodes)}. "
                "Set it to the names one by one: "
                "SLURM_STEP_NODELIST=$(scontrol show hostnames | paste -sd,)."
            )
        hosts += [named[1] + number for number in numbers]
        _check_count(len(hosts), "SLURM_STEP_NODELIST", nodes)
    return hosts


def _check_count(count, name, value):
    if count > _MOST_HOSTS:
        raise ValueError(
            f"Expected {name} to have up to {_MOST_HOSTS:,} nodes; received {shown(value)}. Start "
            "the command with srun."
        )


def _check_addresses(addresses):
    seen = set()
    for address in addresses:
        expected = expected_instead(address)
        if expected is None and place(address) in seen:
            expected = "a name once"
        if expected is not None:
            raise ValueError(
                f"Expected {expected} in SLURM_STEP_NODELIST; received {shown(address)}, with its "
                "port. Start the command with srun."
            )
        seen.add(place(address))


def _numbers(ranges: str) -> Iterator[str]:
    """`01-03` and 7, with a zero byte between them, as 01, 02, 03, 7."""
    for entry in ranges.split("\0"):
        first, _, last = entry.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        yield from (str(n).zfill(len(first)) for n in itertools.islice(numbers, _MOST_HOSTS + 1))


def _counts(tasks: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1."""
    counts: list[int] = []
    for entry in tasks.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", entry)
        if not found:
            raise ValueError(
                f"Expected SLURM_STEP_TASKS_PER_NODE like 2(x3),1; received {shown(tasks)}. Start "
                "the command with srun."
            )
        repeated = int(found[2] or 1)
        _check_count(len(counts) + repeated, "SLURM_STEP_TASKS_PER_NODE", tasks)
        counts += [int(found[1])] * repeated
    return counts


def _value(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise ValueError(
            f"Expected {name} in the environment of a SLURM task; received none. Start the command "
            "with srun."
        )
    return environment[name]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _value(environment, name)
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError(
            f"Expected {name} to be a whole number; received {shown(text)}. Start the command "
            "with srun."
        )
    return int(text)


if __name__ == "__main__":
    main()
