# make help says what there is. Everything works from a fresh checkout on Debian or Ubuntu with cargo.

PREFIX ?= /usr/local
CARGO ?= cargo
RELEASE = $(or $(CARGO_TARGET_DIR),target)/release
# So many tests at a time keep two cores busy: most of them sleep most of the time.
JOBS ?= 8
# Signals that are ignored here (nohup, a job in the background of a script) would be ignored in every program tested.
SIGNALS = env --default-signal
# Takes note of the end of orphans at once, for whose ids restarts of root wait.
REAPER = $(SIGNALS) /usr/bin/python3 scripts/reaper.py
SAY = @printf '\n==> %s\n'

.PHONY: help demo build test test-full support check unit loom e2e deps install clean
.PHONY: bench-objects
bench-objects: build ## what a put of objects blocks its program; 8 ranks by 2 MB every 10 ms, beside a copy
	@scripts/bench-objects.sh

.PHONY: bench-streams
bench-streams: build ## puts into streams beside copies and files; deltas; a consumer (needs a quiet machine)
	@/usr/bin/python3 benches/streams.py

.PHONY: bench-adjoint bench-veloc
bench-adjoint: build ## restarts of an adjoint pass with hints, and without, where the server evicts as LRU does
	@scripts/bench-adjoint.sh

bench-veloc: build ## our library beside VELOC's own (VELOC=PREFIX): blocked by checkpoints and restarts
	@/usr/bin/python3 benches/veloc.py

.PHONY: bench bench-aickpt bench-codecs bench-device bench-exec bench-figure4 bench-flush bench-gate bench-hierarchy
.PHONY: bench-memory-tier bench-pager bench-precopy bench-remote bench-remote-lazy bench-restart bench-rollback
.PHONY: bench-gang bench-protect bench-reed-solomon bench-scr bench-tiers bench-tree bench-planner bench-policy

help: ## this list
	@sed -n 's/^\([a-z0-9 -]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

build: ## the binary and the libraries, target/release
	$(SAY) "building holdfast and its libraries"
	$(CARGO) build --release --locked -p holdfast -p holdfast-native -p holdfast-nvstream -p holdfast-veloc
	$(CARGO) rustc --release --locked -p holdfast-preload --lib -- -C panic=abort
	@for name in holdfast veloc; do ln -f $(RELEASE)/lib$${name}_client.so $(RELEASE)/lib$$name-client.so; done

# Beside the binary, whose crates have the features that the tests have: so nothing is compiled twice.
.PHONY: stand-in suites
stand-in: ## the CUDA driver of the tests, which needs no GPU: target/release/libholdfast_stand_in.so; and an nvCOMP
	$(SAY) "building the stand-in driver"
	$(CARGO) build --release --locked -p holdfast -p holdfast-stand-in -p holdfast-stand-in-nvcomp

demo: ## python3 + numpy under holdfast: checkpoint, kill -9, restart, compare (installs what is missing: 5 minutes)
	@scripts/demo.sh

deps: ## install by apt what the tests need and this machine lacks (as root)
	@scripts/install-deps.sh

check: ## format, lints, order of the house: what each check forbids is in tests/README.md
	$(SAY) "format"
	$(CARGO) fmt --all --check
	$(SAY) "lints"
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	$(SAY) "order"
	@scripts/check-arrows.sh
	@scripts/check-cycles.py
	@scripts/check-folders.py
	@scripts/check-unused.py
	@scripts/check-licences.py
	@scripts/check-links.py
	@scripts/check-columns.py
	@scripts/check-words.py
	@scripts/check-effects.py
	@/usr/bin/python3 -m unittest discover -q -s scripts

# JOBS at a time, too: many of them wait for a disk. What is compiled for them alone is not optimised.
unit: ## tests of the crates
	$(SAY) "unit tests"
	RUST_TEST_THREADS=$(JOBS) RUSTC_WRAPPER=$(CURDIR)/scripts/rustc-unit.sh $(SIGNALS) \
		$(CARGO) test --release --locked --workspace --exclude holdfast-tests
	/usr/bin/python3 -m unittest discover -q -s benches

# A folder of its own: other flags would make cargo build everything anew each time.
loom: ## all interleavings of what runs concurrently: the flush queue, engine slots, the gate of CUDA calls
	$(SAY) "interleavings"
	RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir target/loom \
		-p holdfast-pager -p holdfast-preload -p holdfast-cuda-hooks --lib -- interleavings model

# --workspace: so that the crates have the features of the unit tests' build, and are not compiled once more.
e2e: build stand-in ## real programs: checkpoint, kill, restart (tests/); JOBS=N tests at a time
	$(SAY) "what is expected of a CUDA driver, of one whose memory libholdfast owns"
	HOLDFAST_CUDA_DATA=library HOLDFAST_NO_AGENT=1 CONFORMANCE_PRELOAD=$(CURDIR)/target/release/libholdfast.so \
		$(CARGO) test -q --release --locked --workspace --test conformance
	$(SAY) "end-to-end tests"
	$(REAPER) $(CARGO) test --release --locked --workspace --test e2e --no-fail-fast \
		-- --test-threads=$(JOBS)

test: deps check unit e2e ## what CI runs (some 17 minutes on two cores, from nothing)

.PHONY: cuda-table miri deny fuzz-check fuzz s3 garage slurm hosts podman kernel gpu gpu-bare userland chroot
.PHONY: hosts-failures
miri: ## unit tests of the pure crates under miri, where a nightly compiler has it (no test of system calls)
	$(SAY) "undefined behaviour"
	@scripts/miri.sh

deny: ## licences, sources and known vulnerabilities of all packages by cargo-deny (installs it: minutes)
	$(SAY) "packages"
	@scripts/deny.sh

fuzz-check: ## the fuzz targets (a workspace of their own) still compile
	$(SAY) "fuzz targets"
	cd fuzz && $(CARGO) check --locked

fuzz: ## every fuzz target for FUZZ_SECONDS (60), where there are a nightly compiler and cargo-fuzz
	$(SAY) "fuzzing"
	@scripts/fuzz.sh

s3: ## the remote tier at a real S3 server (a workspace of its own: the server takes minutes to compile)
	$(SAY) "S3"
	cd tests/s3 && $(CARGO) test --release --locked --target-dir ../../target/s3

cuda-table: ## the functions of the CUDA driver, 12.0 to 13.5, from its headers (PyPI, 30 MB, into target/cuda-headers)
	$(SAY) "the driver's functions"
	@scripts/cuda-table.sh

nvcc: stand-in ## the CUDA programs of the tests as nvcc builds them (nvcc from PyPI, 250 MB, into FOLDER=target/nvcc)
	$(SAY) "CUDA programs by nvcc"
	@scripts/nvcc.sh programs $(or $(FOLDER),target/nvcc)

garage: build
garage: ## images on three Garage nodes, one of them killed (builds the server, once: 10 to 40 minutes; 1 GB)
	$(SAY) "Garage"
	@tests/garage/cluster.py build
	HOLDFAST_TEST_GARAGE=1 $(REAPER) $(CARGO) test --release --locked -p holdfast-tests --test e2e -- \
		garage:: --test-threads=1
	@folder=$$(mktemp -d)/cluster; trap 'tests/garage/down "$$folder"; rmdir "$${folder%/*}"' EXIT; \
	settings=$$(tests/garage/up "$$folder") && eval "$$settings" && HOLDFAST_TEST_SINGLE_WRITER=1 \
		$(CARGO) test --release --locked -p holdfast-tiers --lib the_server_of_the_environment

# Somewhere that make clean leaves alone: it comes over a network.
CHROOT ?= /var/cache/holdfast-tests
chroot: build ## by deb, tarball and pip in a fresh Debian: the README's first steps (as root; 300 MB, once)
	$(SAY) "a fresh Debian"
	@if tests/chroot/base $(CHROOT)/bookworm; then \
	HOLDFAST_TEST_CHROOT=$(CHROOT) $(REAPER) $(CARGO) test --release --locked -p holdfast-tests --test e2e -- \
		clean_debian:: --test-threads=1; else echo "SKIPPED: there is no fresh Debian"; fi

podman: build ## jobs in Podman's containers, of root and rootless, with its seccomp profile (as root; 200 MB, once)
	@scripts/install-deps.sh podman
	$(SAY) "Podman"
	@if HOLDFAST_TEST_PACKAGES=python3,redis-server tests/chroot/base $(CHROOT)/podman; then \
	tests/podman/run.py $(RELEASE) $(CHROOT)/podman; else echo "SKIPPED: there is no fresh Debian"; fi

kernel: build ## on the newest kernel and C library that Debian has, in a machine of QEMU (as root; 400 MB, once)
	@scripts/install-deps.sh kernel
	$(SAY) "another kernel"
	@if HOLDFAST_TEST_SUITE=trixie \
	HOLDFAST_TEST_PACKAGES=python3,redis-server,iproute2,linux-image-cloud-amd64/trixie-backports \
	tests/chroot/base $(CHROOT)/kernel; then tests/qemu/run.py $(RELEASE) $(CHROOT)/kernel; \
	else echo "SKIPPED: there is no fresh Debian"; fi

slurm: build ## the README's batch script under Slurm itself (root, packages slurm-wlm and munge): ten minutes
	$(SAY) "Slurm"
	@tests/slurm/run.py $(RELEASE); one=$$?; tests/slurm/gang.py $(RELEASE) && exit $$one

hosts: build ## MPI codes, PyTorch, Dask and Redis over two and four hosts (root; packages: `make support` has them)
	$(SAY) "programs over hosts"
	@tests/hosts/programs.py $(RELEASE)

hosts-failures: build ## an MPI code under --restart-on-failure, failures of all kinds at random (root; ten minutes)
	$(SAY) "failures of hosts, agents and ranks"
	@tests/hosts/failures.py $(RELEASE) --minutes 3 --mtbf 10 --every 2s

test-full: deps check unit loom miri deny fuzz-check s3 garage slurm hosts podman kernel chroot nvcc gpu-bare userland
test-full: hosts-failures build stand-in
test-full: ## the long form: ten rounds, 200 deaths, 1000 flipped bits (hours)
	$(SAY) "policies on a device, long form"
	HOLDFAST_TEST_FULL=1 $(CARGO) test --release --locked -p holdfast-stand-in --test hierarchy
	$(SAY) "end-to-end tests, long form"
	HOLDFAST_TEST_FULL=1 $(REAPER) $(CARGO) test --release --locked --workspace --test e2e --no-fail-fast \
		-- --test-threads=$(JOBS)

support: deps build
support: ## every program of the suite in four forms, as root and as uid 1000: writes docs/support.md (as root)
	$(SAY) "conformance run"
	$(REAPER) $(CARGO) run --release --locked -p holdfast-tests --bin support -- $(if $(ONLY),$(ONLY:%=--only %))
	$(if $(ONLY),,@$(MAKE) --no-print-directory suites)

suites: build ## Python's own tests and stress-ng's under checkpoints and restarts, both users (as root; an hour)
	@scripts/install-deps.sh suites
	$(SAY) "Python's own tests"
	$(REAPER) /usr/bin/python3 tests/suites/python_suite.py $(RELEASE)
	$(SAY) "stress-ng"
	$(REAPER) /usr/bin/python3 tests/suites/stressors.py $(RELEASE)

bench: deps build ## stop time, restart time, image size, overhead; beside --engine sync and gdb's gcore
	@scripts/bench.sh

bench-aickpt: build ## AI-Ckpt's benchmark at 1/16 of its size, beside an ideal flusher (< 30 minutes; SCALE=1: hours)
	@/usr/bin/python3 benches/aickpt.py

bench-codecs: ## the choice of codecs beside each fixed one, by kind of data and speed of the link (< 3 minutes)
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench codecs

bench-device: ## policies with real threads on a CUDA device (the stand-in), beside the simulator (< 10 minutes)
	@$(CARGO) bench -q --locked -p holdfast-stand-in --bench device

bench-exec: build ## programs that a script starts, beside an empty preloaded library (< 2 minutes)
	@/usr/bin/python3 benches/exec.py

bench-figure4: build
bench-figure4: ## LAMMPS and a lattice code: added time by the bound on copies (< 20 minutes; installs lammps as root)
	@scripts/install-deps.sh figure4
	@/usr/bin/python3 benches/figure4.py

bench-flush: ## the flush of 4 GiB of noise beside fio, with the same durability (< 3 minutes; installs fio as root)
	@scripts/install-deps.sh flush
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench flush

bench-gate: ## what a wrapper of a CUDA call costs, on an empty driver (< 1 minute)
	@$(CARGO) bench -q --locked -p holdfast-cuda-hooks --bench gate

bench-hierarchy: ## the policy with real threads and bytes, beside its simulator (< 3 minutes)
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench hierarchy

bench-memory-tier: ## puts into the memory tier, beside memcpy and plain files in tmpfs (< 2 minutes, 2 GB of memory)
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench memory_tier

bench-pager: build ## cost of first writes, stop of a 4 GiB heap, size of increments (< 15 minutes, 6 GB of memory)
	@/usr/bin/python3 benches/pager.py

bench-gang: build ## stops of a gang beside those of one job, and what its leader does for each member (< 4 minutes)
	@/usr/bin/python3 benches/gang.py

bench-protect: build ## parity between hosts and rebuilds beside memcpy, link and model; root (< 10 minutes, 4 GB)
	@/usr/bin/python3 benches/protect.py

bench-scr: build ## the same beside SCR's redset (SCR=FOLDER of its sources), by turns; root (< 10 minutes, 4 GB)
	@/usr/bin/python3 benches/scr.py

bench-reed-solomon: ## Reed-Solomon by the crate that is used, beside ISA-L and memcpy (< 5 minutes; libisal-dev)
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench reed_solomon

bench-planner: ## the tables of multi-level checkpoint plans (Sato), beside what is printed there (seconds)
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench planner

bench-policy: ## eviction, prefetch and compression schedules in virtual time, beside LRU, UVM, Belady (< 8 minutes)
	@$(CARGO) bench -q --locked -p holdfast-tiers --bench policy

bench-precopy: build ## what a pre-copy stores in vain, and what it spares the stop, by pattern and pace (< 5 minutes)
	@/usr/bin/python3 benches/precopy.py

bench-remote: build ## an image to three Garage nodes and back, beside curl (< 10 minutes; builds the server, once)
	@/usr/bin/python3 benches/remote.py

bench-remote-lazy: build ## 4 GiB back from behind a link of 100 MB/s, lazily and not (< 10 minutes, 13 GB of memory)
	@/usr/bin/python3 benches/remote_lazy.py

bench-restart: build ## restart by how the image came about, beside the floor (< 2 minutes, 3 GB of memory)
	@/usr/bin/python3 benches/restart.py

bench-rollback: build stand-in ## rollback beside kill and restart; with device memory, too (minutes, 3 GB)
	@/usr/bin/python3 benches/rollback.py

bench-tiers: build ## run time with a lower tier that is down, slow, full or refuses, beside none (< 15 minutes)
	@/usr/bin/python3 benches/tiers.py

bench-tree: build ## stop of a job of 20 processes and 200 threads, holdfast check on it (< 2 minutes)
	@/usr/bin/python3 benches/tree.py

gpu: build ## what a machine with a GPU needs for tests/gpu/run, into target/gpu and target/gpu.tar.xz
	@tests/gpu/build

userland: gpu stand-in ## users of the CUDA driver API (PyPI, 800 MB, once) on the stand-in: ten restarts each
	$(SAY) "the userland of CUDA, on the stand-in"
	@tests/userland/run

gpu-bare: gpu stand-in ## the same in a bare root on the stand-in driver, part by part (as root; 6 minutes)
	$(SAY) "the day of a GPU, on the stand-in"
	@tests/gpu/bare

install: build ## into PREFIX (default /usr/local)
	$(SAY) "installing into $(DESTDIR)$(PREFIX)"
	@scripts/install.sh $(RELEASE) $(DESTDIR)$(PREFIX)

.PHONY: tarball deb rpm wheel
tarball deb rpm wheel: build ## what users unpack or install, into target/packages
	$(SAY) "packing: $@"
	@scripts/package.sh $@

clean: ## what was built, and the folders of the tests in /tmp
	$(CARGO) clean
	rm -rf /tmp/holdfast-kit$(subst /,-,$(CURDIR)) /tmp/holdfast-demo-*
