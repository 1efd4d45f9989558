"""What `python -m tf_scalecom doctor` examines, and its report as text."""

import os
import socket
from pathlib import Path

from tf_scalecom.base.terminal import printable
from tf_scalecom.doctor import horovod, machine
from tf_scalecom.doctor.network import Doctors
from tf_scalecom.workers import proxies
from tf_scalecom.workers.addresses import host_and_port
from tf_scalecom.workers.agreement import differences
from tf_scalecom.workers.cluster import Cluster, in_words, parse_tf_config

# What workers of one cluster must have in common.
_ALIKE = ("tf_scalecom", "tensorflow", "keras")


def examine(bandwidth: bool, timeout: float, script: Path | None = None) -> dict:
    """What there is to say of this worker; its entry "problems" lists what is wrong.

    Args:
        bandwidth: whether to measure it.
        timeout: how long to wait for the doctors of the other workers, seconds.
        script: what is to be trained with, to be searched for what is left of Horovod.
    """
    problems: list[str] = [*horovod.launched(os.environ)]
    if script:
        problems += _problems_of_script(script)
    return {
        "versions": machine.versions(),
        "kernels": _kernels(problems),
        "compilers": machine.compilers(),
        "gpus": machine.gpus(),
        "tensorflow_build": machine.tensorflow_build(),
        "proxies": proxies.in_environment(),
        **_network(bandwidth, timeout, problems),
        "problems": problems,
    }


def _kernels(problems):
    try:
        return machine.kernels()
    except (ValueError, RuntimeError, OSError) as error:
        problems.append(str(error))
        return None


def _problems_of_script(script):
    if os.path.exists(script) and not os.path.isfile(script):
        return [f"Expected a Python script; received {script}, which is no file. Correct the path."]
    try:
        return list(horovod.leftovers(script))
    # The parser's, of text that is no Python or nested beyond measure.
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"Expected a Python script; received {script}: {error}. Correct it, or the path."]


def _network(bandwidth, timeout, problems):
    """The report's entries "cluster", "peers" and "bytes_per_second"; None where there is none."""
    found = {"cluster": None, "peers": None, "bytes_per_second": None}
    try:
        cluster = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    except ValueError as error:
        problems.append(str(error))
        return found
    if cluster is None:
        return found
    found["cluster"] = {"task": cluster.name, "workers": cluster.workers}
    if not cluster.peers:
        return found
    problems += _problems_of_own_address(cluster)
    facts = {
        "versions": {name: machine.versions()[name] for name in _ALIKE},
        "workers": cluster.workers,
    }
    doctors = Doctors(cluster, facts, bandwidth)
    try:
        found["bytes_per_second"] = doctors.meet(timeout)
    except RuntimeError as error:
        problems.append(str(error))
        return found
    problems += _problems_of_peers(cluster, doctors, bandwidth, timeout)
    found["peers"] = {
        name: {
            "address": peer.address,
            "reached": peer.reached,
            "answered": peer.answered,
            "doctor": peer.facts is not None,
            "error": peer.error,
        }
        for name, peer in doctors.peers.items()
    }
    return found


def _problems_of_own_address(cluster: Cluster):
    try:
        host, port = host_and_port(cluster.address)
        socket.getaddrinfo(host, port)
    except OSError as error:
        yield (
            f"Expected an address of {cluster.name}, this one, at which the others can reach it; "
            f"received {cluster.address}: {in_words(error)}. Correct it in all workers' TF_CONFIG."
        )


def _problems_of_peers(cluster: Cluster, doctors: Doctors, bandwidth, timeout):
    for name, peer in doctors.peers.items():
        where = f"{name} at {peer.address}"
        if peer.error:
            yield (
                f"Expected {where} to answer within {timeout:g} s; received: {peer.error}. "
                "Start the doctor there too, and check its TF_CONFIG, this address and firewalls."
            )
        elif peer.facts is not None and not peer.came:
            yield (
                f"Expected a call from {where}, which answers when called from here; received none "
                f"within {timeout:g} s. Check that {cluster.address} is reachable from there."
            )
        elif bandwidth and name == doctors.next and peer.facts is None:
            yield (
                f"Expected the doctor of {where} to take a stream; received an answer that is no "
                "doctor's, as where the training already runs. Start the doctor there too, before "
                "the training, with --bandwidth."
            )
        elif doctors.stream_error and name == doctors.next:
            yield (
                f"Expected {where} to take a stream; received: {doctors.stream_error}. Look into "
                "what its doctor says, and start both again."
            )
    known = {name: peer.facts for name, peer in doctors.peers.items() if peer.facts is not None}
    for line in differences([doctors.facts, *known.values()], [cluster.name, *known]):
        yield f"Expected the same on all workers; received {line}. Install and start all alike."


def as_text(report: dict, bandwidth: bool) -> str:
    """A report of `examine` in lines; `bandwidth` as there."""
    lines = [("versions", ", ".join(f"{name} {v}" for name, v in report["versions"].items()))]
    if report["kernels"]:
        lines.append(("kernels", "{backend}: {reason}".format(**report["kernels"])))
        lines.append(("op library", report["kernels"]["library"] or "none"))
    lines += [(name, found or "none") for name, found in report["compilers"].items()]
    lines.append(("GPUs", "; ".join(report["gpus"]) or "none"))
    build = report["tensorflow_build"]
    cuda = "CUDA {cuda}, cuDNN {cudnn}".format(**build) if build["cuda"] else "no CUDA"
    lines.append(("TensorFlow", f"built with {cuda}"))
    if report["proxies"]:
        lines.append(("proxies", f"{', '.join(report['proxies'])}: workers go around them"))
    lines.append(("TF_CONFIG", _verdict(report)))
    for name, peer in (report["peers"] or {}).items():
        if peer["doctor"]:
            said = "its doctor answers"
        elif peer["answered"]:
            said = "answers, but not as a doctor"
        else:
            said = "takes a connection, but does not answer" if peer["reached"] else "not reached"
        lines.append((name, f"{peer['address']}: {said}"))
    if report["bytes_per_second"]:
        rate = f"{8e-9 * report['bytes_per_second']:.3g} Gbit/s to the next worker"
        lines.append(("bandwidth", rate))
    elif bandwidth:
        others = len((report["cluster"] or {"workers": ()})["workers"]) > 1
        why = "the problem is below" if others else "TF_CONFIG names no other worker"
        lines.append(("bandwidth", f"not measured: {why}"))
    lines += [("PROBLEM", problem) for problem in report["problems"]]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(name.ljust(width) + printable(value) for name, value in lines)


def _verdict(report):
    cluster = report["cluster"]
    if cluster is None:
        is_set = os.environ.get("TF_CONFIG")
        return "names no cluster" if is_set else "not set: this process trains alone"
    return f"{cluster['task']}, one of {len(cluster['workers'])}"
