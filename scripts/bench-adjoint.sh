#!/bin/bash
# An adjoint pass with all hints, and with none, where the server evicts as LRU does and prefetches nothing: what the
# program is blocked by (tests/apps/adjoint.c). The paper's case by 1/64: 384 versions of 2 MB, 10 ms between two,
# memory of 64 MB for the caches of a device, of 512 MB for those of a host.
# Run: make bench-adjoint [VERSIONS=384 BYTES=2097152 INTERVAL=10000 MEMORIES="64M 512M" ORDERS="reverse ..."]
set -euo pipefail
cd "$(dirname "$0")/.."
release=$PWD/${CARGO_TARGET_DIR:-target}/release
versions=${VERSIONS:-384} bytes=${BYTES:-2097152} interval=${INTERVAL:-10000}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/bench-adjoint.XXXXXX")
server=
leave() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$folder"
}
trap leave EXIT
ln -sf "$release/libveloc_client.so" "$folder/libveloc-client.so"
gcc -O2 -Wall -Icompat/veloc/include -o "$folder/adjoint" tests/apps/adjoint.c "$folder/libveloc-client.so"
export LD_LIBRARY_PATH=$folder HOLDFAST_BIN=$release/holdfast
for memory in ${MEMORIES:-64M 512M}; do
    for order in ${ORDERS:-reverse irregular sequential +reverse}; do
        for hints in ${HINTS:-none all wrong}; do
            printf 'scratch = %s\nmode = async\n' "$folder/store" >"$folder/cfg"
            "$release/holdfast" serve --store "$folder/store" --memory "$memory" &
            server=$!
            until [ -S "$folder/store/objects/serve.sock" ]; do sleep 0.05; done
            printf '%-5s ' "$memory"
            "$folder/adjoint" "$order" "$hints" "$versions" "$bytes" "$interval" "$folder/cfg" | tr '\n' ' '
            awk '/^VmHWM/ { printf "(server: at most %d MB)\n", $2 / 1024 }' "/proc/$server/status"
            wait "$server"
            server=
            rm -rf "$folder/store"
        done
    done
done
