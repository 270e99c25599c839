#!/bin/bash
# Background jobs, pipelines, subshells, a coprocess, traps, process substitution. One line per turn. jobs.sh [TURNS]
set -u
turns=${1:-60}
signals=0
trap 'signals=$((signals + 1))' USR1
coproc echo_server { while read -r line; do echo "<$line>"; done; }

for ((turn = 0; turn < turns; turn++)); do
    jobs=()
    for n in 1 2 3; do
        (sleep 0.02; exit $((turn % 50 + n))) &
        jobs+=($!)
    done
    most=$(seq "$turn" $((turn + 3000)) | awk '{ print $1 * 7919 % 10007 }' | sort -n | tail -n 1)
    digest=$(for ((i = 0; i < 50; i++)); do echo "$turn $i"; done |
        while read -r a b; do echo "$b-$a"; done | sha256sum)
    echo "question $turn" >&"${echo_server[1]}"
    read -r answer <&"${echo_server[0]}"
    (kill -USR1 $$) # the end of the subshell is waited for, then the trap runs
    same=$(diff <(seq 100 | rev | sort) <(seq 100 | rev | sort | cat) && echo same)
    codes=""
    for job in "${jobs[@]}"; do
        wait "$job"
        codes+=" $?"
    done
    if true | false | true; then all=${PIPESTATUS[*]}; fi
    echo "$turn $most ${digest:0:16} $answer $signals $same [$codes] $all $( (exit 7); echo $?)"
done
exec {echo_server[1]}>&-
wait
echo PASS
