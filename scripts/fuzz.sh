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
for target in manifest segment archive codecs history records; do mkdir -p "corpus/$target"; done
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

cp "$GOLDEN"/export-v3/* corpus/archive/

for target in ${*:-$(sed -n 's/^name = "\([a-z]*\)"$/\1/p' Cargo.toml)}; do
    echo "== $target"
    # A frame is unpacked into 1 MiB, a manifest into what is in proportion to its length.
    cargo "+$TOOLCHAIN" fuzz run "$target" -- \
        -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=0 -verbosity=0
done
