#!/bin/sh
# cargo-deny over the workspace and fuzz/, by deny.toml: licences, bans, sources, and, where the RustSec database can be
# had (github.com), known vulnerabilities. Called by `make deny`, which `make test-full` calls; `make check` has the
# first three by scripts/check-licences.py, since cargo-deny takes minutes to install.
#
# Installs cargo-deny from crates.io into target/tools where it is missing. With no network it uses what is there, and
# says what was skipped.
set -eu
cd "$(dirname "$0")/.."

VERSION=0.20.2
PATH="$PWD/target/tools/bin:$PATH"

if ! command -v cargo-deny >/dev/null; then
    echo "deny: installing cargo-deny $VERSION into target/tools (some three minutes on two cores)"
    if ! cargo install --quiet --locked --version "$VERSION" --root target/tools --target-dir target/tools/build \
        cargo-deny; then
        echo "deny: SKIPPED: cargo-deny could not be installed"
        exit 0
    fi
    rm -rf target/tools/build
fi

deny() { # MANIFEST COMMAND...
    manifest=$1
    shift
    cargo-deny --log-level error --config "$PWD/deny.toml" --manifest-path "$manifest" --locked "$@"
}

for manifest in Cargo.toml fuzz/Cargo.toml; do
    echo "deny: $manifest"
    deny "$manifest" check licenses bans sources
done

# The database alone, so that a machine without it is told apart from a vulnerability that was found.
if deny Cargo.toml fetch db >/dev/null 2>&1; then
    for manifest in Cargo.toml fuzz/Cargo.toml; do
        deny "$manifest" check advisories
    done
else
    echo "deny: SKIPPED: advisories: the database (https://github.com/RustSec/advisory-db) cannot be had from here"
fi
