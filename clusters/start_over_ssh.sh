#!/bin/bash
# usage: start_over_ssh.sh "HOST ..." PORT COMMAND [ARGUMENT ...]
# Starts the command on all hosts, from the folder of the same path as this one, and ends with the
# code of the first host in that order that is not 0. Every host must have the program, and reach the
# others under these names. Ctrl-C, a hang-up or SIGTERM ends the commands on all hosts.
set -euo pipefail

refuse() {
    printf 'usage: start_over_ssh.sh "HOST ..." PORT COMMAND [ARGUMENT ...]\n%s\n' "$1" >&2
    exit 2
}

# For any shell there: in single quotes, as %q of bash is for bash alone.
quoted() {
    local word quote="'\\''"
    for word; do printf "'%s' " "${word//\'/$quote}"; done
}

(($# >= 3)) || refuse "Expected hosts, a port and a command; received $# of them. Add what is missing."
read -rd '' -a hosts <<<"$1" || true # also on several lines
port=$2
shift 2
((${#hosts[@]})) || refuse "Expected hosts; received none. Name them, with blanks between them."
[[ $port =~ ^[0-9]{1,5}$ ]] && ((10#$port > 0 && 10#$port < 65536)) ||
    refuse "Expected a port from 1 to 65535; received '$port'. Give a number, such as 12345."
port=$((10#$port))
[[ $1 ]] || refuse "Expected a command; received ''. Give one, such as python train.py."

addresses=()
seen=" "
for host in "${hosts[@]}"; do
    # With a hyphen it would be an option to ssh. The user is for ssh alone.
    [[ $host =~ ^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?([A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*)$ ]] ||
        refuse "Expected the name of a host; received '$host'. Correct it."
    name=${BASH_REMATCH[2]}
    [[ $name == *:* ]] && name="[$name]" # IPv6
    address="\"$name:$port\""
    [[ $seen != *" ${address,,} "* ]] ||
        refuse "Expected a host for each worker; received '$host' twice. Name each once."
    seen+="${address,,} "
    addresses+=("$address")
done
cluster=$(printf ', %s' "${addresses[@]}")
workers=()
# An ssh that ends takes its command along, by -tt; in the background it sees no Ctrl-C itself.
end() {
    kill "${workers[@]}" 2>/dev/null || true
    wait
    exit "$1"
}
trap 'end 129' HUP
trap 'end 130' INT
trap 'end 143' TERM
for index in "${!hosts[@]}"; do
    config="{\"cluster\": {\"worker\": [${cluster:2}]}, \"task\": {\"type\": \"worker\", \"index\": $index}}"
    ${SSH:-ssh -tt} "${hosts[$index]}" \
        "cd $(quoted "$PWD")&& exec env $(quoted "TF_CONFIG=$config" "$@")" \
        </dev/null > >(sed "s/^/[worker $index] /") 2>&1 &
    workers+=($!)
done
code=0
for worker in "${workers[@]}"; do
    wait "$worker" || code=$((code ? code : $?))
done
exit "$code"
