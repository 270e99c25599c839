#!/bin/bash
# Measures and prints tables; asserts nothing. `make bench`; docs/results.md has the figures of a named machine.
#   RUNS=20   checkpoints per row        PAIRS=5   pairs of the overhead table
#   ONLY=stop|restart|overhead           one part
# Stop time is taken twice: as the program itself sees it (a 1 ms ticker prints every gap between two of its wake-ups,
# so 1 ms is in it), and as the image's manifest has it (from the first interrupt to the last thread let go).
# Run it on a machine that does nothing else. Takes some minutes and 6 GB of disk in TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS=${RUNS:-20}
PAIRS=${PAIRS:-5}
ONLY=${ONLY:-all}
export PATH=$PWD/target/release:$PATH LC_ALL=C
work=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-bench-XXXXXX")
export HOLDFAST_STORE=$work/store
mkdir -m 700 "$HOLDFAST_STORE"
started=()
cleanup() {
    # only what still runs in our folder: pids are used again
    for pid in "${started[@]}"; do
        [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$work" ] && kill -9 "$pid" 2>/dev/null
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
apps=$PWD/tests/apps
for name in ticker toucher stencil heap; do
    cc -std=gnu11 -O2 -pthread -fopenmp -o "$work/$name" "tests/programs/$name.c"
done
cd "$work"

now_ns() { date +%s%N; }
monotonic_ns() { awk '{ printf "%.0f\n", $1 * 1e9 }' /proc/uptime; }
# stats: median and largest of numbers on standard input
stats() {
    sort -n | awk '{ v[NR] = $1 }
        END { m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; printf "%.2f %.2f", m, v[NR] }'
}
json() { /usr/bin/python3 -c 'import json, sys
v = json.load(sys.stdin)
for key in sys.argv[1].split("."):
    v = v[int(key)] if key.isdigit() else v[key]
print(v)' "$1"; }
program_pid() { holdfast list --json | /usr/bin/python3 -c 'import json, sys
jobs = json.load(sys.stdin)["jobs"]
print(next((j["pid"] for j in jobs if j["job"] == sys.argv[1] and j["pid"]), ""))' "$1"; }
wait_for() {
    for _ in $(seq 2000); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.01; done
    echo "no $*" >&2
    return 1
}
end_job() { # JOB FRONT
    local pid
    pid=$(program_pid "$1")
    [ -n "$pid" ] && { kill -9 "$pid" || true; } 2>/dev/null
    { wait "$2" || true; } 2>/dev/null
    sleep 0.2
}
# largest gap in milliseconds that the ticker printed after a moment (its own clock)
gap_since() {
    awk -v from="$1" 'NF == 2 && $1 > from && $2 > most { most = $2 } END { printf "%.3f\n", most / 1000 }' "$2"
}

header() {
    printf '\n%-34s %19s %19s %14s %12s %10s\n' "$1" "stop seen, ms" "stop, manifest" "clone, ms" "besides" "image"
    printf '%-34s %19s %19s %14s %12s %10s\n' "" "median      max" "median      max" "median" "median" "MB"
}

# stop_row NAME ENGINE MIB THREADS: the ticker under Holdfast, RUNS checkpoints
stop_row() {
    local job=ticker front seen=() total=() clone=() besides=() shown bytes before out=ticker.out
    holdfast run --name $job --keep 1 --engine "$2" -- ./ticker "$3" "$4" 600 >$out 2>ticker.err &
    front=$!
    started+=("$front")
    wait_for grep -q ready $out
    sleep 0.5
    for _ in $(seq "$RUNS"); do
        before=$(monotonic_ns)
        holdfast checkpoint $job >/dev/null
        sleep 0.05
        seen+=("$(gap_since "$before" $out)")
        shown=$(holdfast show $job --json)
        total+=("$(echo "$shown" | json stop.total_ns)")
        clone+=("$(echo "$shown" | json stop.clone_ns)")
        bytes=$(du -sb "$HOLDFAST_STORE/$job" | cut -f1)
    done
    for i in "${!total[@]}"; do besides+=($((total[i] - clone[i]))); done
    ms() { printf '%s\n' "$@" | awk '{ print $1 / 1e6 }' | stats; }
    printf '%-34s %9s %9s %9s %9s %14s %12s %10s\n' "$1" $(printf '%s\n' "${seen[@]}" | stats) $(ms "${total[@]}") \
        "$(ms "${clone[@]}" | cut -d' ' -f1)" "$(ms "${besides[@]}" | cut -d' ' -f1)" $((bytes / 1000000))
    end_job $job "$front"
    holdfast prune $job --all >/dev/null 2>&1 || rm -rf "${HOLDFAST_STORE:?}/$job"
}

# gcore_row NAME MIB THREADS: what gdb does to the same program
gcore_row() {
    local pid seen=() before bytes n=$((RUNS < 5 ? RUNS : 5)) out=gcore.out
    command -v gcore >/dev/null || { echo "gcore is not here"; return; }
    ./ticker "$2" "$3" 600 >$out &
    pid=$!
    started+=("$pid")
    wait_for grep -q ready $out
    sleep 0.5
    for _ in $(seq "$n"); do
        before=$(monotonic_ns)
        gcore -o core "$pid" >/dev/null 2>&1
        sleep 0.1
        seen+=("$(gap_since "$before" $out)")
        bytes=$(stat -c %s "core.$pid")
        rm -f "core.$pid"
    done
    printf '%-34s %9s %9s %19s %14s %12s %10s\n' "$1" $(printf '%s\n' "${seen[@]}" | stats) - - - $((bytes / 1000000))
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
}

# python at its prompt: input is a pipe that stays open; it sees nothing, so the manifest tells
prompt_row() {
    local job=prompt front feeder total=() bytes
    (echo 'print("ready", flush=True)'; exec sleep 600) | holdfast run --name $job --keep 1 -- /usr/bin/python3 -i \
        >prompt.out 2>&1 &
    front=$!
    feeder=$(jobs -p | tail -n 1)
    started+=("$front" "$feeder")
    wait_for grep -q ready prompt.out
    for _ in $(seq "$RUNS"); do
        holdfast checkpoint $job >/dev/null
        total+=("$(holdfast show $job --json | json stop.total_ns)")
    done
    bytes=$(du -sb "$HOLDFAST_STORE/$job" | cut -f1)
    printf '%-34s %19s %9s %9s %14s %12s %10s\n' "python3 at its prompt" - \
        $(printf '%s\n' "${total[@]}" | awk '{ print $1 / 1e6 }' | stats) - - $((bytes / 1000000))
    kill "$feeder" 2>/dev/null || true
    end_job $job "$front"
    rm -rf "${HOLDFAST_STORE:?}/$job"
}

stops() {
    header "stop time ($RUNS checkpoints)"
    stop_row "1 GiB heap, 1 thread" auto 1024 0
    stop_row "1 GiB heap, 1 thread, engine sync" sync 1024 0
    gcore_row "1 GiB heap, 1 thread, gcore" 1024 0
    stop_row "16 MiB heap" auto 16 0
    stop_row "16 MiB heap, 64 idle threads" auto 16 64
    gcore_row "16 MiB heap, gcore" 16 0
    prompt_row
    holdfast run --name breakdown -- ./ticker 1024 0 600 >ticker.out 2>/dev/null &
    local front=$!
    started+=("$front")
    wait_for grep -q ready ticker.out
    holdfast checkpoint breakdown
    printf '\nbreakdown of one stop, 1 GiB:\n'
    holdfast show breakdown
    end_job breakdown "$front"
    rm -rf "${HOLDFAST_STORE:?}/breakdown"
}

# restart_row NAME MIB OPTION: from the start of `holdfast restart` to the first new line, warm cache
restart_row() {
    local job=back front pid times=() start size n=$((RUNS < 10 ? RUNS : 10)) read_ms bytes
    holdfast run --name $job -- ./toucher "$2" 100000 1 0 >back.out 2>/dev/null &
    front=$!
    started+=("$front")
    wait_for grep -q counter back.out
    holdfast checkpoint $job >/dev/null
    end_job $job "$front"
    bytes=$(cat "$HOLDFAST_STORE/$job"/segment-* | wc -c)
    start=$(now_ns)
    cat "$HOLDFAST_STORE/$job"/segment-* >/dev/null
    read_ms=$((($(now_ns) - start) / 1000000))
    for _ in $(seq "$n"); do
        # the file is put back first and grows with the first new line
        size=$(stat -c %s back.out)
        start=$(now_ns)
        # shellcheck disable=SC2086  # options are words
        holdfast restart --stdio keep $job $3 2>/dev/null &
        front=$!
        started+=("$front")
        /usr/bin/python3 -c 'import os, sys, time
size = int(sys.argv[1])
while os.stat("back.out").st_size >= size: time.sleep(0.0002)
back = os.stat("back.out").st_size
while os.stat("back.out").st_size <= back: time.sleep(0.0002)' "$size"
        times+=("$((($(now_ns) - start) / 10000))e-2")
        end_job $job "$front"
    done
    printf '%-34s %9s %9s %14s %12s\n' "$1" $(printf '%s\n' "${times[@]}" | stats) "$read_ms" $((bytes / 1000000))
    rm -rf "${HOLDFAST_STORE:?}/$job"
}

restarts() {
    printf '\n%-34s %19s %14s %12s\n' "restart to the first new line" "ms, median      max" "plain read, ms" "image, MB"
    restart_row "16 MiB" 16 ""
    restart_row "1 GiB, as Holdfast chooses" 1024 ""
    restart_row "1 GiB, --eager" 1024 --eager
    restart_row "1 GiB, --lazy" 1024 --lazy
}

# pair NAME CMD...: plain and under `holdfast run`, interleaved; the median of the ratios
pair() {
    local name=$1 plain=() under=() ratios=() start
    shift
    for i in $(seq "$PAIRS"); do
        for kind in $( ((i % 2)) && echo plain under || echo under plain); do
            start=$(now_ns)
            if [ $kind = plain ]; then
                "$@" >/dev/null 2>&1
                plain+=($(($(now_ns) - start)))
            else
                holdfast run --name "pair$i" -- "$@" >/dev/null 2>&1
                under+=($(($(now_ns) - start)))
                rm -rf "${HOLDFAST_STORE:?}/pair$i"
            fi
        done
        ratios+=("$(awk -v a="${under[-1]}" -v b="${plain[-1]}" 'BEGIN { printf "%.4f", a / b }')")
    done
    printf '%-34s %12s %12s %12s\n' "$name" \
        "$(printf '%s\n' "${plain[@]}" | awk '{ print $1 / 1e9 }' | stats | cut -d' ' -f1)" \
        "$(printf '%s\n' "${under[@]}" | awk '{ print $1 / 1e9 }' | stats | cut -d' ' -f1)" \
        "$(printf '%s\n' "${ratios[@]}" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')"
}

overheads() {
    printf '\n%-34s %12s %12s %12s\n' "overhead without a checkpoint" "plain, s" "holdfast, s" "ratio"
    pair "python3 loop" /usr/bin/python3 "$apps/loop.py" 300
    pair "numpy, 500 MiB" /usr/bin/python3 "$apps/arrays.py" 500 30
    pair "OpenMP stencil, 4 threads" ./stencil 1000 8000 1000
    pair "sqlite3, in memory" sqlite3 -batch -init /dev/null :memory: ".read $apps/long.sql"
    pair "malloc churn" ./heap 1000 0
}

case $ONLY in
    all) stops; restarts; overheads ;;
    stop) stops ;;
    restart) restarts ;;
    overhead) overheads ;;
esac
printf '\nmachine: %s, %s cores, Linux %s, %s\n' "$(sed -n 's/model name.*: //p' /proc/cpuinfo | head -n 1)" \
    "$(nproc)" "$(uname -r)" "$(df --output=fstype "$work" | tail -n 1)"
