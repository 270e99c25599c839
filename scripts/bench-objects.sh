#!/bin/bash
# What a put blocks its program: RANKS processes by BYTES every PERIOD ms for SECONDS (benches/objects/ranks.c), and
# what the server takes meanwhile. Run: make bench-objects [RANKS=8 BYTES=2097152 PERIOD=10 SECONDS_=60 KEEP=3]
set -euo pipefail
cd "$(dirname "$0")/.."
release=$PWD/${CARGO_TARGET_DIR:-target}/release
ranks=${RANKS:-8} bytes=${BYTES:-2097152} period=${PERIOD:-10} seconds=${SECONDS_:-60} keep=${KEEP:-3}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/bench-objects.XXXXXX")
trap 'rm -rf "$folder"' EXIT
ln -sf "$release/libholdfast_client.so" "$folder/libholdfast-client.so"
gcc -O2 -Wall -Ipreload/include -o "$folder/ranks" benches/objects/ranks.c "$folder/libholdfast-client.so"
LD_LIBRARY_PATH=$folder HOLDFAST_BIN=$release/holdfast \
    "$folder/ranks" "$folder/store" "$ranks" "$bytes" "$period" "$seconds" "$keep"
# The first rank has started it.
ps -o cputimes=,etimes=,rss= -p "$(pgrep -f "serve --store $folder/store")" |
    awk '{ printf "server: %d s of processor in %d s, %d MB resident\n", $1, $2, $3 / 1024 }'
