#!/bin/bash
# What a put blocks its program: RANKS processes by BYTES every PERIOD ms for SECONDS (benches/objects/ranks.c), and what
# the server takes meanwhile. Run: make bench-objects [RANKS=8 BYTES=2097152 PERIOD=10 SECONDS_=60 KEEP=3]
set -euo pipefail
cd "$(dirname "$0")/.."
release=$PWD/${CARGO_TARGET_DIR:-target}/release
ranks=${RANKS:-8} bytes=${BYTES:-2097152} period=${PERIOD:-10} seconds=${SECONDS_:-60} keep=${KEEP:-3}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/bench-objects.XXXXXX")
trap 'kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
ln -sf "$release/libholdfast_client.so" "$folder/libholdfast-client.so"
gcc -O2 -Wall -Ipreload/include -o "$folder/ranks" benches/objects/ranks.c "$folder/libholdfast-client.so"
"$release/holdfast" serve --store "$folder/store" &
server=$!
LD_LIBRARY_PATH=$folder HOLDFAST_BIN=$release/holdfast \
    "$folder/ranks" "$folder/store" "$ranks" "$bytes" "$period" "$seconds" "$keep"
ps -o cputimes=,etimes=,rss= -p "$server" |
    awk '{ printf "server: %d s of processor in %d s, %d MB resident\n", $1, $2, $3 / 1024 }'
