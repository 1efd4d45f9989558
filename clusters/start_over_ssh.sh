#!/bin/bash
# usage: start_over_ssh.sh "HOST ..." PORT COMMAND [ARGUMENT ...]
# Starts the command on all hosts, from the folder of the same path as this one, and ends with the
# first code that is not 0. Every host must have the program, and reach the others under these names.
set -euo pipefail
read -ra hosts <<<"$1"
port=$2
shift 2

addresses=$(printf ', "%s:'"$port"'"' "${hosts[@]}")
workers=()
for index in "${!hosts[@]}"; do
    config="{\"cluster\": {\"worker\": [${addresses:2}]}, \"task\": {\"type\": \"worker\", \"index\": $index}}"
    # -tt: the remote command ends with the connection, so that Ctrl-C leaves nothing behind.
    ${SSH:-ssh -tt} "${hosts[$index]}" \
        "cd $(printf %q "$PWD") && TF_CONFIG=$(printf %q "$config") $(printf '%q ' "$@")" \
        </dev/null > >(sed "s/^/[worker $index] /") 2>&1 &
    workers+=($!)
done
code=0
for worker in "${workers[@]}"; do
    wait "$worker" || code=$((code ? code : $?))
done
exit "$code"
