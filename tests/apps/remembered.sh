#!/bin/bash
# The end of a job is asked for only after many other processes have come and gone, more in each turn. `job` is its id,
# and a turn goes on when its file `go` is there. One line per turn.
set -u
exec {never}<> <(:)
for turn in 1 2 3; do
    (exit 27) & job=$!
    echo "$job" > job.new && mv job.new "job$turn"
    until [[ -e go$turn ]]; do read -r -t 0.02 -u "$never"; done
    for ((n = 0; n < turn * 60; n++)); do (:); done
    wait "$job"
    echo "$turn $?"
done
echo PASS
