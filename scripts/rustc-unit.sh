#!/bin/sh
# cargo's RUSTC_WRAPPER in `make unit`: a crate that is compiled for its own unit tests is not optimised. That takes a
# third of the time, and most of these tests wait for the kernel. Libraries stay as they are, and so do crates whose
# tests compute (policies, simulators, the driver of the tests) or that live in other programs (preload, cuda-hooks).
# Cargo's fingerprints know nothing of this: with or without it, nothing is compiled again.
#
# rustc-unit.sh RUSTC ARGUMENT…
crate= last= test=
for argument; do
	[ "$last" = --crate-name ] && crate=$argument
	[ "$argument" = --test ] && test=1
	last=$argument
done
case ${test:+$crate} in
all | front | holdfast | holdfast_image | holdfast_process | holdfast_sys)
	exec "$@" -C opt-level=0 -C debuginfo=0
	;;
esac
exec "$@"
