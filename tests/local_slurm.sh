#!/bin/bash
# usage: local_slurm.sh FOLDER COMMAND [ARGUMENT ...]
# Runs a command beside a SLURM cluster of this machine alone: a controller and the nodes n1 and n2, which have
# a host name, a network address and ports of their own. Partition "urgent" preempts "main". FOLDER, an absolute
# path, gets the configuration and the logs. Everything started here, jobs included, ends with the command.
# Needs root, and SLURM and MUNGE: apt-get install slurm-wlm munge.
set -euo pipefail

if (($$ != 1)); then
    # The kernel ends all processes of a process namespace with its first one, which is this script.
    exec unshare --pid --fork --kill-child --mount-proc --mount --net --uts "$0" "$@"
fi

folder=$1
shift
export SLURM_CONF=$folder/slurm.conf
nodes=(n1 n2)
for name in state "${nodes[@]}"; do
    mkdir "$folder/$name"
done
cat >"$SLURM_CONF" <<END
ClusterName=local
SlurmctldHost=control
SlurmUser=root
# A job that is queued again waits so many seconds; 120 by default.
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n/slurmd.pid
# The nodes have as many CPUs as jobs ask for, whatever this machine has.
SlurmdParameters=config_overrides
NodeName=n[1-2] CPUs=16
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=2
END
# No cgroup is used; version 1 does not look for one.
echo CgroupPlugin=cgroup/v1 >"$folder/cgroup.conf"

hostname control
ip link set lo up
ip link add switch type bridge
ip address add 10.77.0.254/24 dev switch
ip link set switch up
mount -t tmpfs tmpfs /run # for MUNGE's socket and the networks' names, unseen from outside
mkdir /run/munge
printf '%s\n' '127.0.0.1 localhost' '10.77.0.254 control' '10.77.0.1 n1' '10.77.0.2 n2' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts

(umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
munged --foreground --force --key-file="$folder/munge.key" --seed-file="$folder/munge.seed" \
    --pid-file="$folder/munged.pid" >"$folder/munged.log" 2>&1 &
slurmctld -D -i >"$folder/slurmctld.log" 2>&1 &
for number in 1 2; do
    node=n$number
    ip netns add "$node"
    ip link add "to-$node" type veth peer name eth0 netns "$node"
    ip link set "to-$node" master switch up
    ip -netns "$node" address add "10.77.0.$number/24" dev eth0
    ip -netns "$node" link set lo up
    ip -netns "$node" link set eth0 up
    nsenter --net="/run/netns/$node" unshare --uts \
        bash -c 'hostname "$1" && exec slurmd -D' - "$node" >"$folder/slurmd-$node.log" 2>&1 &
done

for ((tenths = 0; ; tenths++)); do
    idle=$(timeout 10 sinfo --noheader --partition=main --states=idle --format=%D 2>&1) || true
    [[ $idle != 2 ]] || break
    if ((tenths == 300)); then
        echo "Expected two idle nodes within 30 s; received '$idle'. See the logs in $folder." >&2
        tail -n 5 "$folder"/*.log >&2
        exit 1
    fi
    sleep 0.1
done
"$@"
