#!/bin/sh
# Every fuzz target for a while: bytes that others may have written are decoded or refused, without a panic, and without
# more memory than they may take. Called by `make fuzz`.
#
# Needs a nightly compiler and cargo-fuzz (`cargo install cargo-fuzz`). Where they are not, it says so and exits with 0.
# FUZZ_SECONDS: for each target (60); arguments: targets, if not all.
set -eu
cd "$(dirname "$0")/../fuzz"

TOOLCHAIN=${FUZZ_TOOLCHAIN:-nightly}
if ! cargo "+$TOOLCHAIN" fuzz --version >/dev/null 2>&1; then
    echo "fuzz: SKIPPED: no toolchain $TOOLCHAIN or no cargo-fuzz; where the network allows it: rustup toolchain" \
        "install $TOOLCHAIN, cargo install cargo-fuzz"
    exit 0
fi

# Seeds: what is right.
GOLDEN=../tiers/tests/golden
for target in manifest segment archive codecs history records streams; do mkdir -p "corpus/$target"; done
for version in v1 v2 v3 v3-codecs; do
    for file in "$GOLDEN/$version"/manifest-*; do cp "$file" "corpus/manifest/$version-${file##*-}"; done
done
# The target `segment` eats the offset of a block (4 bytes), the length of the segment (8) and the block: the last one,
# in old versions the first.
python3 - "$GOLDEN" corpus/segment <<'END'
import pathlib, sys
golden, corpus = map(pathlib.Path, sys.argv[1:])
for file in sorted(golden.glob("v*/segment-*")):
    segment = file.read_bytes()
    base = 0 if file.parent.name in ("v1", "v2") else len(segment) - 4096
    head = base.to_bytes(4, "little") + len(segment).to_bytes(8, "little")
    (corpus / f"{file.parent.name}-{file.name}").write_bytes(head + segment[base : base + 4096])
END

# The target `streams`: what is meant (a byte), and frames; or where a log begins (8 bytes), and records.
python3 - corpus/streams <<'END'
import json, pathlib, sys
corpus = pathlib.Path(sys.argv[1])
def frame(message, body=b""):
    text = json.dumps(message).encode()
    return len(text).to_bytes(4, "little") + len(body).to_bytes(4, "little") + text + body
ask = {"version": "0.1.0", "host": "a", "stream": "sim/0", "at": 0, "object": "field", "follow": True}
answer = frame({"message": "object", "of": {"version": 1, "bytes": 6}}) + frame({"message": "part"}, b"abcdef")
(corpus / "ask").write_bytes(b"\1" + frame({"message": "ask", "of": ask}))
(corpus / "answer").write_bytes(b"\0" + answer + frame({"message": "done"}))
listed = {"message": "list", "of": {"version": 2, "objects": {"field": 3}}}
refused = {"message": "refused", "of": {"reason": "no", "kind": "not_found"}}
(corpus / "list").write_bytes(b"\0" + frame(listed) + frame({"message": "here"}) + frame(refused))
number = lambda value, size=8: value.to_bytes(size, "little")
def record(at, version, kind, entries, data):
    table = b"".join(entries)
    head = number(1) + number(at) + number(64 + len(table) + data) + number(version) + number(len(table), 4)
    return (head + number(kind, 4) + number(len(entries), 4)).ljust(64, b"\0") + table + bytes(data)
def entry(key, kind, size, data, base, runs=()):
    fixed = number(len(key), 2) + number(kind, 2) + number(len(runs), 4)
    runs = b"".join(number(n, 4) for run in runs for n in run)
    return fixed + b"".join(map(number, (size, data, base, 0))) + key + runs
whole = record(0, 1, 2, [entry(b"abcdefghabcdefghabcdefgh", 0, 8192, 128, 0)], 8192)
pages = record(len(whole), 2, 1, [entry(b"abcdefghabcdefgh", 1, 8192, 128, 1, [(1, 1)])], 4096)
(corpus / "log").write_bytes(b"\2" + number(0) + whole + pages)
END

cp "$GOLDEN"/export-v3/* corpus/archive/

for target in ${*:-$(sed -n 's/^name = "\([a-z]*\)"$/\1/p' Cargo.toml)}; do
    echo "== $target"
    # A frame is unpacked into 1 MiB, a manifest into what is in proportion to its length.
    cargo "+$TOOLCHAIN" fuzz run "$target" -- \
        -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=0 -verbosity=0
done
