#!/bin/sh
# Packs Holdfast: usage: scripts/package.sh tarball|deb|rpm|wheel, after `make build`. What it makes is in
# target/packages; the last line says its name.
#   tarball  holdfast-VERSION-x86_64-linux.tar.gz: unpack it anywhere, and put its bin/ into PATH
#   deb, rpm by cargo-deb and cargo-generate-rpm (metadata: cli/Cargo.toml), which are installed into target/tools where
#            they are missing (minutes). The maintainer of a deb is who makes it: DEBFULLNAME and DEBEMAIL as in
#            debchange(1), else git's user, else the account.
#   wheel    for pip: binary, library and Python module in one
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
    name=${DEBFULLNAME:-$(git config user.name || id -un)}
    address=${DEBEMAIL:-$(git config user.email || echo "$(id -un)@$(uname -n)")}
    made=$(cargo deb --quiet --no-build --no-strip --package holdfast --maintainer "$name <$address>" \
        --output "$packages/" | tail -n 1)
    ;;
rpm)
    tool cargo-generate-rpm 0.21.1
    scripts/install.sh "$from" "$root/usr"
    gzip -9n "$root"/usr/share/man/man1/*
    cargo generate-rpm --package cli --output "$packages/"
    made=$(ls -t "$packages"/*.rpm | head -n 1)
    ;;
wheel)
    /usr/bin/python3 -m venv "$root"
    "$root/bin/pip" wheel --quiet --no-deps --wheel-dir "$root/wheels" ./python
    mv "$root"/wheels/*.whl "$packages/"
    made=$(ls -t "$packages"/*.whl | head -n 1)
    ;;
*)
    echo "package: $kind: tarball, deb, rpm or wheel" >&2
    exit 1
    ;;
esac
rm -rf "$root"
echo "$made"
