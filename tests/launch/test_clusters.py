"""What clusters/ holds fits what it is for: SLURM's variables, Kubeflow's schema, ssh."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes.client
import pytest
import yaml
from kubeflow.training import models as kubeflow_models
from package_source import ROOT, run

from tf_scalecom import slurm
from tf_scalecom.launch.local_cluster import reserve_ports
from tf_scalecom.workers.cluster import parse_tf_config

CLUSTERS = ROOT / "clusters"


# SLURM.


def slurm_task(rank, nodelist, tasks_per_node, node, local, job=7):
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local),
    }


def test_slurm_tasks_are_workers_by_rank_without_a_gpu():
    tasks = [
        slurm_task(0, "n[9-11],m5", "2,1(x3)", 0, 0),
        slurm_task(1, "n[9-11],m5", "2,1(x3)", 0, 1),
        slurm_task(3, "n[9-11],m5", "2,1(x3)", 2, 0),
    ]
    configs = [slurm.tf_config(task) for task in tasks]
    addresses = configs[0]["cluster"]["worker"]
    assert [address.partition(":")[0] for address in addresses] == ["n9", "n9", "n10", "n11", "m5"]
    assert len(set(addresses)) == 5
    for config, rank in zip(configs, (0, 1, 3), strict=True):
        assert parse_tf_config(json.dumps(config)).name == f"worker {rank}"
        assert config["cluster"]["worker"] == addresses


def test_slurm_pads_numbers_of_nodes_with_zeros():
    config = slurm.tf_config(slurm_task(0, "login,n[08-10,2]", "1(x5)", 0, 0))
    hosts = [address.partition(":")[0] for address in config["cluster"]["worker"]]
    assert hosts == ["login", "n08", "n09", "n10", "n2"]


def test_slurm_jobs_on_one_node_have_different_ports_below_those_the_system_gives_away():
    def ports(job):
        config = slurm.tf_config(slurm_task(0, "n1", "64", 0, 0, job))
        return {int(address.partition(":")[2]) for address in config["cluster"]["worker"]}

    taken = [ports(job) for job in range(1000, 1320)]
    assert len(set().union(*taken)) == 320 * 64
    assert max(map(max, taken)) < 32768 and min(map(min, taken)) >= 1024


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({}, "SLURM_STEP_NODELIST in the environment .* received none"),
        (slurm_task("first", "n1", "1", 0, 0), "SLURM_PROCID to be a whole number; .* 'first'"),
        (
            slurm_task(1, "n[1-2]", "2(x2)", 1, 0),
            "SLURM_PROCID=1 as SLURM_LOCALID=0 on SLURM_NODEID=1",
        ),
        (slurm_task(0, "n[1-2]", "65,1", 0, 0), "1 to 64 tasks"),
        (slurm_task(0, "n[1-2]", "1(2)", 0, 0), "like 2\\(x3\\),1; received '1\\(2\\)'"),
        (slurm_task(0, "n[1,,2]", "1(x2)", 0, 0), "received 'n\\[1,,2\\]'. Set it to the names"),
        (slurm_task(0, "r[1-2]n1", "1(x2)", 0, 0), "received 'r\\[1-2\\]n1'. Set it to the names"),
        (slurm_task(9 * "9", "n1", "1", 0, 0), "SLURM_PROCID=999999999 as SLURM_LOCALID=0 on"),
        (slurm_task(5000 * "9", "n1", "1", 0, 0), "SLURM_PROCID to be a whole number"),
        (slurm_task("١", "n1", "1", 0, 0), "SLURM_PROCID to be a whole number"),
        (slurm_task(0, f"n[1-{10 * '9'}]", "1", 0, 0), "SLURM_STEP_NODELIST like"),
        (slurm_task(0, f"n[1-{9 * '9'}]", "1", 0, 0), "SLURM_STEP_NODELIST to have up to 65,536"),
        (slurm_task(0, "n1", f"1(x{9 * '9'})", 0, 0), "SLURM_STEP_TASKS_PER_NODE to have up to"),
        (slurm_task(0, "a," * 65_537, "1", 0, 0), r"SLURM_STEP_NODELIST to have .* characters\)"),
        (slurm_task(0, "n1", "0", 0, 0), "SLURM_STEP_TASKS_PER_NODE to give 1 to 64 .* '0'"),
        (slurm_task(0, "n[1-2]", "1,0", 0, 0), "1 to 64 tasks .* '1,0'"),
        (slurm_task(0, "n1", "1(x0)", 0, 0), "1 to 64 tasks for each of the 1 nodes"),
        (slurm_task(0, "n1", "1(x65536)", 0, 0), "received '1\\(x65536\\)'"),
        (slurm_task(0, "n1", "١", 0, 0), "SLURM_STEP_TASKS_PER_NODE like"),
        (slurm_task(0, "n[١-٣]", "1(x3)", 0, 0), "SLURM_STEP_NODELIST like"),
        (slurm_task(0, "a,a", "1(x2)", 0, 0), "a name once in SLURM_STEP_NODELIST; .* 'a:12448'"),
        (slurm_task(0, "n[1,1]", "1(x2)", 0, 0), "a name once in SLURM_STEP_NODELIST"),
        (slurm_task(0, 64 * "a", "1", 0, 0), "1 to 63 between dots .* in SLURM_STEP_NODELIST"),
        (slurm_task(0, "a..b", "1", 0, 0), "1 to 63 between dots .* in SLURM_STEP_NODELIST"),
        (slurm_task(0, "a:1", "1", 0, 0), "host:port .* in SLURM_STEP_NODELIST"),
        (slurm_task(0, "n1\n", "1", 0, 0), "SLURM_STEP_NODELIST like"),
        (slurm_task(0, "n1", "1", 0, -1), "SLURM_LOCALID to be a whole number; received '-1'"),
        (slurm_task(0, "n1", "1", 0, 0, job="7_1"), "SLURM_JOB_ID to be a whole number"),
    ],
    ids=itertools.count(),
)
def test_what_slurm_does_not_say_is_refused(task, complaint):
    with pytest.raises(ValueError, match=f"(?s)Expected .*{complaint}"):
        slurm.tf_config(task)


def test_the_command_under_srun_sees_tf_config():
    environment = slurm_task(1, "n[1-2]", "1(x2)", 1, 0)
    output = run(
        sys.executable, "-m", "tf_scalecom.slurm", "sh", "-c", 'echo "$1 $TF_CONFIG"', "-", "a b",
        cwd=ROOT, **environment,
    )  # fmt: skip
    config = slurm.tf_config(environment)
    assert f"a b {json.dumps(config)}" in output


def test_a_command_that_cannot_be_run_is_named(monkeypatch):
    for name, value in slurm_task(0, "n1", "1", 0, 0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TF_CONFIG", "")  # restored afterwards
    with pytest.raises(SystemExit, match=r"received 'no-such-command' .No such file"):
        slurm.main(["no-such-command"])


# Kubernetes.

_PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def check_against_models(kind: str, value, place: str):
    """Builds the API's model of a manifest: no field it does not know, all that it requires."""
    if kind.startswith("list["):
        return [check_against_models(kind[5:-1], v, f"{place}[]") for v in value]
    if kind.startswith("dict("):
        kind = kind[5:-1].partition(", ")[2]
        return {k: check_against_models(kind, v, f"{place}.{k}") for k, v in value.items()}
    if kind in _PLAIN:
        assert isinstance(value, _PLAIN[kind]), f"{place}: expected {kind}, received {value!r}"
        return value
    model = getattr(kubeflow_models, kind, None) or getattr(kubernetes.client, kind)
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    assert not set(value) - set(names), f"{place}: unknown {set(value) - set(names)}"
    fields = {
        names[k]: check_against_models(model.openapi_types[names[k]], v, f"{place}.{k}")
        for k, v in value.items()
    }
    return model(**fields)  # raises where a required field is missing


@pytest.mark.parametrize("name", ["tfjob_cpu.yaml", "tfjob_gpu.yaml"])
def test_kubeflow_takes_the_manifest(name):
    manifest = yaml.safe_load((CLUSTERS / name).read_text())
    job = check_against_models("KubeflowOrgV1TFJob", manifest, name)
    assert (job.api_version, job.kind) == ("kubeflow.org/v1", "TFJob")
    worker = job.spec.tf_replica_specs["Worker"]
    assert worker.restart_policy in ("Always", "OnFailure", "Never", "ExitCode")
    assert job.spec.run_policy.scheduling_policy.min_available == worker.replicas
    (container,) = worker.template.spec.containers
    assert container.name == "tensorflow"  # or the operator sets no TF_CONFIG
    assert ("nvidia.com/gpu" in container.resources.limits) == ("gpu" in name)
    mounted = {mount.name for mount in container.volume_mounts}
    assert mounted == {volume.name for volume in worker.template.spec.volumes}


def test_the_check_of_manifests_finds_mistakes():
    manifest = yaml.safe_load((CLUSTERS / "tfjob_cpu.yaml").read_text())
    template = manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["comand"] = ["python"]
    with pytest.raises(AssertionError, match="comand"):
        check_against_models("KubeflowOrgV1TFJob", manifest, "manifest")


def test_tf_config_as_the_training_operator_writes_it_is_understood():
    addresses = [f"scalecom-worker-{i}.default.svc:2222" for i in range(4)]
    config = {
        "cluster": {"worker": addresses},
        "task": {"type": "worker", "index": 2},
        "environment": "cloud",
    }
    assert parse_tf_config(json.dumps(config)).address == addresses[2]


def trainer_manifests():
    runtime, job = yaml.safe_load_all((CLUSTERS / "trainjob.yaml").read_text())
    return runtime, job


def test_kubeflow_trainer_takes_the_runtime_and_the_job():
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api, of requirements.txt"
    )

    def as_understood(manifest):  # without the fields that the API does not know
        return getattr(models, f"TrainerV1alpha1{manifest['kind']}").from_dict(manifest).to_dict()

    runtime, job = trainer_manifests()
    assert [as_understood(manifest) for manifest in (runtime, job)] == [runtime, job]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    runtime["spec"]["mlPolicy"]["nodes"] = 2
    assert as_understood(runtime) != runtime


def test_a_node_of_kubeflow_trainer_is_a_worker():
    runtime, job = trainer_manifests()
    nodes = runtime["spec"]["mlPolicy"]["numNodes"]
    (jobs,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = jobs["template"]["spec"]["template"]["spec"]["containers"]
    # What Kubernetes itself fills in: the label of the pod, and its number in the job.
    environment = {"JOB_SET": job["metadata"]["name"], "JOB_COMPLETION_INDEX": "2"}
    environment |= {each["name"]: each["value"] for each in container["env"] if "value" in each}
    cluster, *arguments = run(
        *container["command"], "sh", "-c", 'printf "%s\n" "$TF_CONFIG" "$@"', "-", "a b",
        cwd=ROOT, **environment,
    ).splitlines()  # fmt: skip
    assert arguments == ["a b"]
    cluster = parse_tf_config(cluster)
    assert cluster.jobs == {
        "worker": tuple(f"scalecom-{jobs['name']}-0-{i}.scalecom:2222" for i in range(nodes))
    }
    assert cluster.task_id == 2


# ssh and shell.


@pytest.mark.parametrize("name", ["train.sbatch", "start_over_ssh.sh"])
def test_shell_scripts_are_well_formed(name):
    run("bash", "-n", CLUSTERS / name, cwd=ROOT)


@pytest.mark.parametrize("requeue", [0, 1])
@pytest.mark.parametrize("code", [0, 3, 143])
def test_a_job_of_slurm_ends_with_the_code_of_its_training(code, requeue, tmp_path):
    for program, ends_with in [("srun", code), ("scontrol", requeue)]:
        (tmp_path / program).write_text(f"#!/bin/sh\necho {program} $1\nexit {ends_with}\n")
        (tmp_path / program).chmod(0o755)
    process = subprocess.run(
        ["bash", CLUSTERS / "train.sbatch"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
             "SLURM_SUBMIT_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert process.returncode == code, process
    assert ("scontrol requeue" in process.stdout) == (code != 0)


def over_ssh(arguments, ssh):
    """Has the script run to its end; `ssh` is what it calls in place of ssh."""
    return subprocess.run(
        [CLUSTERS / "start_over_ssh.sh", *arguments],
        env={**os.environ, "SSH": str(ssh)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture
def dash(tmp_path):
    """In place of ssh, a shell that is not bash: on Debian `sh` is dash."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    return ssh


def test_hosts_over_ssh_get_their_places_and_a_failure_is_passed_on(dash):
    """With `ssh HOST COMMAND` replaced by a shell here; the quoting is as for the real one."""
    code = (
        "import os, sys; config = os.environ['TF_CONFIG']; print(config, sys.argv[1:]); "
        "sys.exit(3 if config.endswith('1}}') else 0)"
    )
    process = over_ssh(["a b", "12345", sys.executable, "-c", code, "x y"], dash)
    assert process.returncode == 3, process.stderr
    for rank in (0, 1):
        (line,) = (s for s in process.stdout.splitlines() if s.startswith(f"[worker {rank}] "))
        config, _, arguments = line.removeprefix(f"[worker {rank}] ").rpartition(" [")
        assert arguments == "'x y']"
        cluster = parse_tf_config(config)
        assert cluster.jobs == {"worker": ("a:12345", "b:12345")} and cluster.task_id == rank


SAY = "import json, os, sys; print(json.loads(os.environ['TF_CONFIG'])['cluster'], sys.argv[1:])"


def test_arguments_arrive_as_they_are_in_any_shell(dash):
    odd = ["it's", 'a"b', "$HOME", "`id`", "x\ny", "t\tb", "", "~", "*", "ü", "\\n", "!", "& ;"]
    process = over_ssh(["a", "123", sys.executable, "-c", SAY, *odd], dash)
    assert process.stdout == f"[worker 0] {{'worker': ['a:123']}} {odd}\n", process.stderr
    process = over_ssh(["a", "123", "COLOUR=red", "sh", "-c", 'echo "$COLOUR"'], dash)
    assert process.stdout == "[worker 0] red\n", process.stderr


@pytest.mark.parametrize(
    ("hosts", "port", "addresses"),
    [
        ("a\n b\t c", "123", ["a:123", "b:123", "c:123"]),
        ("me@a you@b.example", "00123", ["a:123", "b.example:123"]),
        ("::1 fe80::1%eth0", "65535", ["[::1]:65535", "[fe80::1%eth0]:65535"]),
    ],
)
def test_hosts_may_be_written_in_any_way_that_ssh_knows(hosts, port, addresses, dash):
    process = over_ssh([hosts, port, sys.executable, "-c", SAY], dash)
    line = f"[worker 0] {{'worker': {addresses}}} []"
    assert line in process.stdout.splitlines(), process.stdout + process.stderr
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    assert parse_tf_config(json.dumps(config)).jobs == {"worker": tuple(addresses)}


def commands_until_signal(number, ssh, hosts, running):
    """Has the script get a signal once commands run on all hosts; its exit code and last words."""
    with subprocess.Popen(
        # Under `nohup` a script could not take the signal.
        ["env", "--default-signal=HUP",
         CLUSTERS / "start_over_ssh.sh", " ".join(hosts), "12345", "sleep", "60.25"],
        env={**os.environ, "SSH": str(ssh)}, stderr=subprocess.PIPE, text=True,
    ) as script:  # fmt: skip
        deadline = time.monotonic() + 30
        while len(commands := running(script.pid)) < len(hosts):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        script.send_signal(number)
        _, said = script.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while any(path.exists() for path in commands) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(path.exists() for path in commands)
    return script.returncode, said


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


@SIGNALS
def test_a_signal_ends_the_commands_on_all_hosts(number, tmp_path):
    """With `ssh` replaced by a command that a signal ends, as ssh itself."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 60\n")
    ssh.chmod(0o755)

    def running(pid):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [path for child in children if says_sleep(path := Path(f"/proc/{child}/cmdline"))]

    code, said = commands_until_signal(number, ssh, ["a", "b", "c"], running)
    assert code == 128 + number, said


def says_sleep(path, *arguments):
    with contextlib.suppress(OSError):
        return path.read_bytes().startswith(b"\0".join([b"sleep", *arguments]))
    return False


@pytest.fixture(scope="module")
def real_ssh(tmp_path_factory):
    """The words that call ssh for a server of this machine's own, which ends with the tests."""
    if not Path("/usr/sbin/sshd").exists() or not shutil.which("ssh"):
        pytest.skip("needs ssh and its server (Debian: openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for key in "host", "user":
        run("ssh-keygen", "-qt", "ed25519", "-N", "", "-f", folder / key, cwd=folder)
    (port,) = reserve_ports(1)
    number = port.getsockname()[1]
    (folder / "config").write_text(
        f"Port {number}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPidFile none\n"
        "PermitRootLogin yes\n"
    )
    server = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-f", folder / "config", "-E", folder / "log"]
    )
    options = "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"
    ssh = [
        "ssh",
        "-tt",
        "-p",
        str(number),
        "-i",
        str(folder / "user"),
        *(f"-o{o}" for o in options),
    ]
    deadline = time.monotonic() + 20
    while subprocess.run([*ssh, "127.0.0.1", "true"], capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            pytest.skip(f"sshd does not serve here: {(folder / 'log').read_text()}")
        time.sleep(0.1)
    yield " ".join(ssh)
    server.terminate()
    server.wait(10)
    port.close()


@SIGNALS
def test_a_signal_ends_the_commands_over_a_real_ssh(number, real_ssh):
    def running(_):
        paths = Path("/proc").glob("[0-9]*/cmdline")
        return [path for path in paths if says_sleep(path, b"60.25")]

    hosts = ["127.0.0.1", "localhost"]
    code, said = commands_until_signal(number, real_ssh, hosts, running)
    assert code == 128 + number, said


def test_a_failure_over_a_real_ssh_is_passed_on(real_ssh):
    process = over_ssh(["127.0.0.1 localhost", "12345", "sh", "-c", "echo it; exit 5"], real_ssh)
    assert process.returncode == 5
    assert sorted(process.stdout.splitlines()) == ["[worker 0] it", "[worker 1] it"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected hosts, a port and a command; received 0"),
        (["--help"], "Expected hosts, a port and a command; received 1"),
        (["a b", "12345"], "Expected hosts, a port and a command; received 2"),
        (["  ", "12345", "true"], "Expected hosts; received none"),
        (["\n", "12345", "true"], "Expected hosts; received none"),
        (["a b", "port", "true"], "Expected a port from 1 to 65535; received 'port'"),
        (["a b", "0", "true"], "Expected a port from 1 to 65535; received '0'"),
        (["a b", "65536", "true"], "Expected a port from 1 to 65535; received '65536'"),
        (["a b", "-1", "true"], "Expected a port from 1 to 65535; received '-1'"),
        (["a b", 20 * "9", "true"], "Expected a port from 1 to 65535; received '999"),
        (["a b", "12345", ""], "Expected a command; received ''"),
        (["a -oProxyCommand=true", "12345", "true"], "Expected the name of a host; received '-o"),
        (["me@-a", "12345", "true"], "Expected the name of a host; received 'me@-a'"),
        (['a b"', "12345", "true"], "Expected the name of a host; received 'b\"'"),
        (["a,b", "12345", "true"], "Expected the name of a host; received 'a,b'"),
        (["$(id)", "12345", "true"], "Expected the name of a host; received '$(id)'"),
        (["*", "12345", "true"], "Expected the name of a host; received '*'"),
        (["[::1]", "12345", "true"], "Expected the name of a host; received '[::1]'"),
        (["ssh://a", "12345", "true"], "Expected the name of a host; received 'ssh://a'"),
        (["a b a", "12345", "true"], "Expected a host for each worker; received 'a' twice"),
        (["a b A", "12345", "true"], "Expected a host for each worker; received 'A' twice"),
        (["a me@a", "12345", "true"], "Expected a host for each worker; received 'me@a' twice"),
    ],
)
def test_what_ssh_cannot_take_is_refused_before_it_starts(arguments, message):
    process = over_ssh(arguments, "false")
    usage, error = process.stderr.splitlines()
    assert process.returncode == 2
    assert usage.startswith("usage: start_over_ssh.sh ") and error.startswith(message)
