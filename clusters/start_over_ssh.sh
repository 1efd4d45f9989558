#!/bin/bash
# usage: start_over_ssh.sh "HOST ..." PORT COMMAND [ARGUMENT ...]
# Starts the command on all hosts, from the folder of the same path as this one, and ends with the
# first code that is not 0. Every host must have the program, and reach the others under these names.
# Ctrl-C, a hang-up or SIGTERM ends the commands on all hosts.
set -euo pipefail

refuse() {
    printf 'usage: start_over_ssh.sh "HOST ..." PORT COMMAND [ARGUMENT ...]\n%s\n' "$1" >&2
    exit 2
}

(($# >= 3)) || refuse "Expected hosts, a port and a command; received $# of them. Add what is missing."
read -ra hosts <<<"$1"
port=$2
shift 2
((${#hosts[@]})) || refuse "Expected hosts; received none. Name them, with blanks between them."
[[ $port =~ ^[0-9]{1,5}$ ]] || refuse "Expected a port; received '$port'. Give a number, such as 12345."
for host in "${hosts[@]}"; do
    # To ssh it would be an option; to TF_CONFIG the end of a text.
    [[ $host != -* && $host != *[\"\\]* ]] || refuse "Expected the name of a host; received '$host'. Correct it."
done

addresses=$(printf ', "%s:'"$port"'"' "${hosts[@]}")
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
    config="{\"cluster\": {\"worker\": [${addresses:2}]}, \"task\": {\"type\": \"worker\", \"index\": $index}}"
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
