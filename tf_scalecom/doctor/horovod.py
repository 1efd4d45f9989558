"""What a script, and the way it was started, still have of Horovod."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

_NOT_NEEDED = "Leave it out: "
# Of Horovod's names, and what is written here in their place.
IN_PLACE_OF = {
    "init": "Write strategy = sc.MultiWorkerMirroredStrategy() at the top of the script.",
    "shutdown": f"{_NOT_NEEDED}workers part by themselves.",
    "rank": "Write strategy.cluster_resolver.task_id, or give what it guards to chief_only.",
    "size": "Write strategy.num_replicas_in_sync; data need no sharding.",
    "local_rank": f"{_NOT_NEEDED}a worker trains on all GPUs that CUDA_VISIBLE_DEVICES shows it.",
    "local_size": f"{_NOT_NEEDED}a worker trains on all GPUs that CUDA_VISIBLE_DEVICES shows it.",
    "DistributedOptimizer": "Write sc.recipe(optimizer, steps=...), in strategy.scope().",
    "DistributedGradientTape": "Write tf.GradientTape: the optimizer exchanges gradients.",
    "Compression": 'Write sc.ScaleComOptimizer(..., value_dtype="float16").',
    "BroadcastGlobalVariablesCallback": f"{_NOT_NEEDED}variables start as the first worker's.",
    "broadcast_variables": f"{_NOT_NEEDED}variables start as the first worker's.",
    "broadcast_global_variables": f"{_NOT_NEEDED}variables start as the first worker's.",
    "MetricAverageCallback": f"{_NOT_NEEDED}metrics count the samples of all workers.",
    "LearningRateWarmupCallback": "Write a schedule of keras.optimizers.schedules.",
    "LearningRateScheduleCallback": "Write a schedule of keras.optimizers.schedules.",
    "allreduce": "Write strategy.reduce, or all_reduce of the replica context.",
    "allgather": "Write strategy.gather.",
    "broadcast": "Write a variable made in strategy.scope(), which starts as the first worker's.",
    "load_model": "Write keras.models.load_model, in strategy.scope().",
    "elastic": "Give fit sc.callbacks.BackupAndRestore, and start by run --max-restarts.",
}
_ELSE = "See From Horovod in the documentation."
_PACKAGE = "horovod"
_CUSTOMARY = "hvd"  # what is left where the import has gone
# How many processes Horovod's launchers have started.
_STARTED = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def leftovers(script: Path) -> Iterator[str]:
    """Problems, one for each name of Horovod in a script.

    Raises:
        OSError: the script cannot be read.
        SyntaxError: it is no Python.
    """
    tree = ast.parse(script.read_bytes(), str(script))
    modules, names = {_CUSTOMARY}, {}
    found: dict[tuple[int, str], str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_horovods(alias.name):
                    modules.add(alias.asname or _PACKAGE)
                    found[node.lineno, f"import {alias.name}"] = "Write import tf_scalecom as sc."
        elif isinstance(node, ast.ImportFrom) and _is_horovods(node.module or ""):
            for alias in node.names:
                names[alias.asname or alias.name] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _path(node)) and path[0] in modules:
            known = next((part for part in path[1:] if part in IN_PLACE_OF), None)
            found.setdefault((node.lineno, ".".join(path)), IN_PLACE_OF.get(known or "", _ELSE))
        elif isinstance(node, ast.Name) and node.id in names:
            found[node.lineno, node.id] = IN_PLACE_OF.get(names[node.id], _ELSE)
    for (line, name), advice in sorted(_longest(found).items()):
        yield f"Expected no Horovod; received {name} in {script}, line {line}. {advice}"


def launched(environment: Mapping[str, str]) -> Iterator[str]:
    """A problem, if processes were started for Horovod and have no TF_CONFIG."""
    if environment.get("TF_CONFIG"):
        return
    for name in _STARTED:
        number = environment.get(name, "")
        if number.isdecimal() and int(number) > 1:
            yield (
                f"Expected TF_CONFIG in each of {number} processes; received {name}={number} "
                "alone, as horovodrun and mpirun set it: each would train by itself. Start the "
                f"script by `python -m tf_scalecom run -n {number}`, or as docs/clusters.md has it."
            )
            return


def _is_horovods(module):
    return module.partition(".")[0] == _PACKAGE


def _path(node) -> list[str] | None:
    """The names of `a.b.c`, from the left; None for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (path := _path(node.value)):
        return [*path, node.attr]
    return None


def _longest(found):
    """Without `a.b` where `a.b.c` is found in the same line."""
    return {
        (line, name): advice
        for (line, name), advice in found.items()
        if not any(line == other and longer.startswith(f"{name}.") for other, longer in found)
    }
