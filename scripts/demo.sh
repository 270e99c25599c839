#!/bin/sh
# Shows the whole path on a real program: python3 with numpy, 512 MiB of arrays, one checksum line per turn.
#   1. an uninterrupted run, without Holdfast
#   2. the same under `holdfast run`; `holdfast checkpoint` from outside; kill -9; `holdfast restart`
#   3. the joined output of 2 must equal that of 1, byte by byte
# Installs what is missing (apt, as root) and builds. Needs 2 GB of memory and of disk, some 5 minutes from nothing.
# HOLDFAST_BIN=FOLDER: with the holdfast there; nothing is built. Exit status: 1 when a step fails or output differs.
set -eu
cd "$(dirname "$0")/.."
MIB=${MIB:-512}
TURNS=${TURNS:-40}

say() { printf '\n==> %s\n' "$*"; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
# fails unless the command in the background still runs: nothing is waited for that cannot come
still() {
    kill -0 "$front" 2>/dev/null && return 0
    status=0
    wait "$front" || status=$?
    front=""
    echo "demo: $1 (status $status)" >&2
    exit 1
}
# value of a number in JSON: field KEY < text
field() { sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" | head -n 1; }

say "installing what is missing"
scripts/install-deps.sh build
[ -n "${HOLDFAST_BIN:-}" ] || make -s build
PATH=${HOLDFAST_BIN:-$PWD/target/release}:$PATH

work=$(mktemp -d /tmp/holdfast-demo-XXXXXX)
front=""
pid=""
cleanup() {
    [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null
    [ -n "$front" ] && kill -9 "$front" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
app=$PWD/tests/apps/arrays.py
export HOLDFAST_STORE=$work/store
cd "$work"

say "an uninterrupted run: python3 + numpy, $MIB MiB of arrays, $TURNS turns"
start=$(now_ms)
/usr/bin/python3 "$app" "$MIB" "$TURNS" >right
echo "took $(($(now_ms) - start)) ms"

say "the same under holdfast run"
: >out
holdfast run --name demo -- /usr/bin/python3 "$app" "$MIB" "$TURNS" >out &
front=$!
lines() { wc -l <out; }
while [ "$(lines)" -lt $((TURNS / 3)) ]; do
    still "holdfast run, or the program in it, ended before the checkpoint"
    sleep 0.05
done
holdfast list
pid=$(holdfast list --json | field pid)

say "holdfast checkpoint demo"
holdfast checkpoint demo
at_checkpoint=$(lines)
while [ "$(lines)" -lt $((TURNS * 2 / 3)) ]; do
    still "holdfast run, or the program in it, ended before it was killed"
    sleep 0.05
done

say "kill -9 $pid (after $(lines) lines; the image is from line $at_checkpoint or so)"
kill -9 "$pid"
wait "$front" || true
pid=""
tail -n 1 out

say "holdfast restart demo"
size=$(stat -c %s out)
start=$(now_ms)
holdfast restart --stdio keep demo &
front=$!
# the output is put back to its length at the checkpoint, and then grows again
while [ "$(stat -c %s out)" -eq "$size" ]; do
    still "holdfast restart ended before the program went on"
    sleep 0.002
done
back=$(stat -c %s out)
while [ "$(stat -c %s out)" -le "$back" ]; do
    still "holdfast restart ended before the program printed anything"
    sleep 0.002
done
first=$(($(now_ms) - start))
status=0
wait "$front" || status=$?
front=""
[ "$status" = 0 ] || { echo "demo: the restarted program ended with status $status" >&2; exit 1; }

say "result"
holdfast show demo
shown=$(holdfast show demo --json)
stop_ns=$(echo "$shown" | field total_ns)
bytes=$(echo "$shown" | field bytes)
echo "stop time          $((stop_ns / 1000000)).$(printf %02d $((stop_ns / 10000 % 100))) ms"
echo "image              $((bytes / 1000000)) MB"
echo "restart            $first ms to the first new line of output (one turn of the program included)"
if cmp out right; then
    echo "The joined output equals that of the uninterrupted run: $(wc -l <right) lines, $(md5sum <right | cut -c1-12)."
else
    echo "DIFFERENT OUTPUT" >&2
    exit 1
fi
