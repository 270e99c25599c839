#!/bin/sh
# Packs Holdfast: usage: scripts/package.sh tarball|deb|rpm, after `make build`. What it makes is in target/packages.
#   tarball  holdfast-VERSION-x86_64-linux.tar.gz: unpack it anywhere, and put its bin/ into PATH
#   deb, rpm by cargo-deb and cargo-generate-rpm (metadata: cli/Cargo.toml), which are installed into target/tools where
#            they are missing (minutes)
# The programs that it is built for need a C library at least as new as this machine's.
set -eu
cd "$(dirname "$0")/.."
kind=$1
from=${CARGO_TARGET_DIR:-target}/release
packages=$PWD/target/packages
root=$packages/root
PATH="$PWD/target/tools/bin:$PATH"

rm -rf "$root"
mkdir -p "$root"

# tool NAME VERSION
tool() {
    command -v "$1" >/dev/null && return 0
    echo "package: installing $1 $2 into target/tools (minutes)"
    cargo install --quiet --locked --version "$2" --root target/tools --target-dir target/tools/build "$1"
    rm -rf target/tools/build
}

case $kind in
tarball)
    version=$("$from/holdfast" --version)
    name=holdfast-${version##* }-x86_64-linux
    scripts/install.sh "$from" "$root/$name"
    tar --create --gzip --owner=0 --group=0 --numeric-owner --file "$packages/$name.tar.gz" -C "$root" "$name"
    made=$packages/$name.tar.gz
    ;;
deb)
    tool cargo-deb 3.8.0
    scripts/install.sh "$from" "$root/usr"
    gzip -9n "$root"/usr/share/man/man1/*
    made=$(cargo deb --quiet --no-build --no-strip --package holdfast --output "$packages/" | tail -n 1)
    ;;
rpm)
    tool cargo-generate-rpm 0.21.1
    scripts/install.sh "$from" "$root/usr"
    gzip -9n "$root"/usr/share/man/man1/*
    cargo generate-rpm --package cli --output "$packages/"
    made=$(ls -t "$packages"/*.rpm | head -n 1)
    ;;
*)
    echo "package: $kind: tarball, deb or rpm" >&2
    exit 1
    ;;
esac
rm -rf "$root"
echo "$made"
