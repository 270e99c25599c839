#!/bin/sh
# The unit tests of the crates that are pure algorithms and layouts, under miri: undefined behaviour, leaks, reads of
# what is not initialised. Called by `make miri`, which `make test-full` calls.
#
# Needs a nightly compiler with the components miri and rust-src
# (`rustup component add --toolchain nightly miri rust-src`; MIRI_TOOLCHAIN names another toolchain). Where they are
# not, and rustup cannot get them, it says so and exits with 0: a machine without them can run everything else.
set -eu
cd "$(dirname "$0")/.."

# Those that are there of: abi, image, pager; of tiers what is pure too.
CRATES="abi image pager"
TOOLCHAIN=${MIRI_TOOLCHAIN:-nightly}

if ! cargo "+$TOOLCHAIN" miri --version >/dev/null 2>&1; then
    echo "miri: SKIPPED: toolchain $TOOLCHAIN has no component miri; where the network allows it:" \
        "rustup component add --toolchain $TOOLCHAIN miri rust-src"
    exit 0
fi

packages=
for crate in $CRATES; do
    [ -f "$crate/Cargo.toml" ] && packages="$packages -p holdfast-$crate"
done
filter=
[ -d tiers/src/policy ] && filter=policy

# Property tests read the clock and write files of their own; a hundred times slower, so few cases have to do.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation}" PROPTEST_CASES="${PROPTEST_CASES:-4}"
# shellcheck disable=SC2086 # a list of options
cargo "+$TOOLCHAIN" miri test --locked --target-dir target/miri $packages --lib
if [ -n "$filter" ]; then
    cargo "+$TOOLCHAIN" miri test --locked --target-dir target/miri -p holdfast-tiers --lib -- "$filter"
fi
