#!/usr/bin/env python3
"""Restarts of CUDA programs on this machine's driver, as rows of the table of `tests/gpu/run`.

    restarts.py FOLDER [MIB...]

FOLDER has `holdfast`, `libholdfast.so` and `programs/` (tests/gpu/build). Each program runs once undisturbed and then
under `holdfast run`, once for each owner of its device memory (HOLDFAST_CUDA_DATA): three checkpoints at random
moments with which it ends (`--stop`; with DEATHS: kill -9 after each), a restart; what it printed in all has to be that
of the undisturbed run. The figures are of `touches`, a program of MIB MiB of device memory of which each step writes 16
chunks of 64 KiB: the parts of the stop of its second checkpoint, and how much the increment has on disk. Programs by
nvcc (`NAME-nvcc`) have NVIDIA's own runtime, linked statically; `train.py` (examples/cuda) runs where Python has
PyTorch. `cuda_past` (tests/programs) runs once for each KIND of work that is easily missed: two checkpoints at the
moments that it names, a restart.

PROGRAMS (default all; may be empty), KINDS (default none), OWNERS: names of those to run, `default` for none that is
said; CROWDED: MiB of a program whose Restore is to find no room (default: none); ROUNDS: checkpoints of each; DEATHS;
LIMIT_S: how long a step may take; SAID: the file to which the messages of what failed go.
"""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

OWNERS = os.environ.get("OWNERS", "driver library keeper").split()
ROUNDS = int(os.environ.get("ROUNDS", "3"))
LIMIT_S = float(os.environ.get("LIMIT_S", "60"))
DEATHS = bool(os.environ.get("DEATHS"))
NO_RESTARTS = bool(os.environ.get("NO_RESTARTS"))
# Programs in Python: the library that they need, and how many steps they do.
NEEDS = {"train.py": ("torch", "2000"), "arrays.py": ("cupy", "200"), "compiled.py": ("jax", "200"),
         "kernels.py": ("numba.cuda", "200"), "bindings.py": ("cuda.bindings.nvrtc", "100"),
         "compiled_python.py": ("numba.cuda, cuda.bindings.driver", "100"), "tensors.py": ("tinygrad", "100"),
         "fields.py": ("taichi", "100"), "classic.py": ("pycuda.driver, cuda.bindings.nvrtc", "100")}
# What `holdfast run` has to be told for a kind: a library is bound deeply only where jemalloc does not serve.
OPTIONS = {"deep": ["--malloc", "system"]}
# Where what failed leaves what was said meanwhile.
SAID = os.environ.get("SAID", os.devnull)


def row(question, what, value):
    print(f"| {question} | {what} | {value} |", flush=True)


class Job:
    """A program under holdfast, its output in a file."""

    def __init__(self, folder, work, owner, command, options=()):
        self.name = f"gpu{random.getrandbits(32):08x}"
        self.holdfast = os.path.join(folder, "holdfast")
        self.out = os.path.join(work, f"{self.name}.out")
        self.environment = dict(os.environ, HOLDFAST_STORE=os.path.join(work, "jobs"))
        self.environment.pop("HOLDFAST_CUDA_DATA", None)
        if owner != "default":
            self.environment["HOLDFAST_CUDA_DATA"] = owner
        self.front = None
        self.start(["run", "--name", self.name, *options, "--", *command], self.out)

    def start(self, words, output):
        with open(output, "ab") as out, open(self.out + ".err", "ab") as err:
            self.front = subprocess.Popen([self.holdfast, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                          env=self.environment, start_new_session=True)

    def ask(self, *words):
        done = subprocess.run([self.holdfast, *words], capture_output=True, text=True, env=self.environment,
                              timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]}: status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout

    def lines(self):
        with open(self.out, "rb") as out:
            return out.read().count(b"\n")

    def wait_for_lines(self, count):
        end = time.monotonic() + LIMIT_S
        while self.lines() < count:
            if self.front.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"it stopped at line {self.lines()} of {count}")
            time.sleep(0.01)

    def wait_for_file(self, path):
        end = time.monotonic() + LIMIT_S
        while not os.path.exists(path):
            if self.front.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"it does not make {os.path.basename(path)}")
            time.sleep(0.01)

    def image(self):
        return json.loads(self.ask("show", self.name, "--json"))

    def checkpoint_and_end(self):
        """A checkpoint with which the program ends; with DEATHS one after which it is killed."""
        if not DEATHS:
            self.ask("checkpoint", "--stop", self.name)
        else:
            self.ask("checkpoint", self.name)
            self.kill()
            return
        self.front.wait(LIMIT_S)

    def kill(self):
        os.kill(self.image()["record"]["pid"], signal.SIGKILL)
        self.front.wait(LIMIT_S)

    def restart(self):
        begun = time.monotonic()
        before = self.lines()
        # What it had written after the checkpoint is cut off, which a restart does with no file of its own.
        self.start(["restart", "--stdio", "keep", self.name], os.devnull)
        self.wait_for_lines(before + 1)
        return time.monotonic() - begun

    def end(self):
        """The output, when the program has ended well."""
        status = self.front.wait(LIMIT_S)
        if status != 0:
            raise RuntimeError(f"it ended with status {status}")
        with open(self.out, "rb") as out:
            return out.read()

    def stop(self):
        if self.front.poll() is None:
            subprocess.run([self.holdfast, "checkpoint", "--stop", self.name], env=self.environment, check=False,
                           capture_output=True, timeout=LIMIT_S)
        if self.front.poll() is None:
            subprocess.run([self.holdfast, "kill", self.name], env=self.environment, check=False,
                           capture_output=True, timeout=LIMIT_S)


def first_difference(one, other):
    """Number of the first line, from 1, that is not the same."""
    both = zip(one.split(b"\n"), other.split(b"\n"))
    return next((number for number, (a, b) in enumerate(both, 1) if a != b), "the last")


@functools.cache
def undisturbed(command):
    done = subprocess.run(command, capture_output=True, timeout=2 * LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"undisturbed it ends with status {done.returncode}: {done.stderr[-200:]!r}")
    return done.stdout


def chain(folder, work, owner, name, command):
    """Checkpoint, kill, restart, ROUNDS times."""
    wanted = undisturbed(tuple(command))
    total = wanted.count(b"\n")
    job = Job(folder, work, owner, command)
    restarts, at = [], []
    try:
        for number in range(ROUNDS):
            part = total // max(5, ROUNDS + 2)
            job.wait_for_lines(1 + random.randrange(number * part, (number + 1) * part))
            if NO_RESTARTS:
                job.ask("checkpoint", job.name)
                continue
            job.checkpoint_and_end()
            at.append(job.lines())
            restarts.append(job.restart())
        found = job.end()
    finally:
        job.stop()
    same = "equal"
    if found != wanted:
        undisturbed.cache_clear()
        again = undisturbed(tuple(command))
        same = (f"DIFFERENT from line {first_difference(found, wanted)}, restarted after lines {at}; "
                f"undisturbed twice: " + ("the same" if again == wanted else
                                          f"different, too, from line {first_difference(again, wanted)}"))
    times = f"restarts {', '.join(f'{1e3 * each:.0f} ms' for each in restarts)}"
    times = times if restarts else f"{ROUNDS} checkpoints"
    row("restart", f"{name}, {owner}", f"{same}; {times}")


def phased(folder, work, owner, kind):
    """`cuda_past`: a checkpoint before and after work that is easily missed, then a restart of the second."""
    prefix = os.path.join(work, f"{kind}-{owner}")
    command = [os.path.join(folder, "kinds", "cuda_past"), kind, prefix]
    job = Job(folder, work, owner, command, OPTIONS.get(kind, ()))
    try:
        job.wait_for_file(f"{prefix}.1")
        job.ask("checkpoint", job.name)
        open(f"{prefix}.2", "w", encoding="utf-8").close()
        job.wait_for_file(f"{prefix}.3")
        job.checkpoint_and_end()
        hashed = (job.image()["stop"].get("cuda") or {}).get("hashed_bytes", 0)
        open(f"{prefix}.4", "w", encoding="utf-8").close()
        restart = job.restart()
        found = job.end()
    finally:
        job.stop()
    same = "equal" if found.endswith(b"PASS\n") else "DIFFERENT output"
    row("restart", f"cuda_past {kind}, {owner}",
        f"{same}; hashed {hashed / 2**20:.0f} MiB; restart {1e3 * restart:.0f} ms")


def crowded(folder, work, mib):
    """Another process takes the device's memory while a process is CHECKPOINTED: it cannot be restored, is refused from
    then on, and its image is as good as any."""
    command = [os.path.join(folder, "programs", "touches"), "400", str(mib)]
    enough = os.path.join(work, "enough")
    job = Job(folder, work, "driver", command)
    try:
        job.wait_for_lines(1)
        with subprocess.Popen([os.path.join(folder, "probe", "crowd"), enough], stdout=subprocess.PIPE) as crowd:
            crowd.stdout.readline()
            said = []
            for _ in range(2):
                try:
                    job.ask("checkpoint", job.name)
                    said.append("it can be checkpointed")
                except RuntimeError as error:
                    said.append(str(error))
            open(enough, "w", encoding="utf-8").close()
        is_right = "is committed, but" in said[0] and "CHECKPOINTED already" in said[1]
        job.kill()
        restart = job.restart()
    finally:
        job.stop()
        if os.path.exists(enough):
            os.remove(enough)
    row("restart", f"{mib} MiB, no room at Restore", ("refused from then on" if is_right else f"DIFFERENT: {said}") +
        f"; restart {1e3 * restart:.0f} ms")


def milliseconds(stop):
    parts = []
    for key, value in sorted(stop.items()):
        if key.endswith("_ns") and value >= 50_000:
            parts.append(f"{key[:-3]} {value / 1e6:.2f}")
    return " ".join(parts)


def figures(folder, work, owner, mib):
    """The parts of the stop and the size of an increment."""
    # Words with 16 random bits of 64: a codec makes something of them.
    command = [os.path.join(folder, "programs", "touches"), "400", str(mib), "16", "16"]
    job = Job(folder, work, owner, command)
    try:
        job.wait_for_lines(1)
        job.ask("checkpoint", job.name)
        first = job.image()
        job.wait_for_lines(job.lines() + 2)
        job.ask("checkpoint", job.name)
        second = job.image()
        job.checkpoint_and_end()
        restart = job.restart()
    finally:
        job.stop()
    row("restart", f"{mib} MiB on the device, {owner}", f"{1e3 * restart:.0f} ms until its next line")
    for which, image in (("first", first), ("second", second)):
        stop = image["stop"]
        what = f"{which} image of {mib} MiB on the device, {owner}"
        row("stop", what, f"{stop['total_ns'] / 1e6:.1f} ms: {milliseconds(stop.get('cuda') or {})}")
        flush = image["flush"]
        mib_of = lambda key, unit=1: f"{flush.get(key, 0) * unit / 2**20:.1f}"
        row("size", what, f"{mib_of('bytes_stored')} MiB stored; pages: {mib_of('pages_stored', 4096)} MiB stored, "
            f"{mib_of('pages_twins', 4096)} twice, {mib_of('pages_zero', 4096)} zero; compressed "
            f"{mib_of('bytes_compressed_from')} to {mib_of('bytes_compressed_to')} MiB; most copies "
            f"{image['epoch']['copies_peak'] / 256:.1f} of {image['epoch']['copies_limit'] / 256:.1f} MiB")
        if owner in ("keeper", "default"):
            dirty = stop["cuda"]["dirty_bytes"]
            on_device = flush.get("bytes_compressed_on_device", 0) / 2**20
            row("flush", what, f"{dirty / 2**20:.1f} MiB of device memory, {on_device:.1f} compressed on the device, "
                f"{dirty / max(flush['flush_ns'], 1):.2f} GB/s until the commit")


def keep_messages(work, subject):
    """What fronts, programs and agents said, their last lines."""
    names = [os.path.join(folder, name) for folder, _, names in os.walk(work) for name in names
             if name.endswith((".err", ".log")) or name == "log"]
    with open(SAID, "a", encoding="utf-8") as said:
        print(f"==== {subject}", file=said)
        for name in sorted(names, key=os.path.getmtime)[-4:]:
            with open(name, encoding="utf-8", errors="replace") as log:
                print(f"-- {name}", *log.read().splitlines()[-40:], sep="\n", file=said)


def guarded(what, work, *arguments):
    try:
        what(*arguments)
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
        subject = " ".join(str(each) for each in arguments if isinstance(each, (str, int)) and "/" not in str(each))
        row("restart", subject, f"FAILED: {error}")
        keep_messages(work, subject)
        shutil.rmtree(os.path.join(work, "jobs"), ignore_errors=True)


def main():
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = os.path.abspath(sys.argv[1])
    sizes = [int(word) for word in sys.argv[2:]]
    programs = os.path.join(folder, "programs")
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-") as work:
        wanted = os.environ.get("PROGRAMS", " ".join(sorted(os.listdir(programs))))
        for name in wanted.split():
            command = [os.path.join(programs, name), "60"]
            if name in NEEDS:
                library, steps = NEEDS[name]
                command = [sys.executable, os.path.join(programs, name), steps]
                if subprocess.run([sys.executable, "-c", f"import {library}"], capture_output=True,
                                  check=False).returncode:
                    row("restart", name, f"not run: no {library} here")
                    continue
            for owner in OWNERS:
                guarded(chain, work, folder, work, owner, name, command)
        for kind in os.environ.get("KINDS", "").split():
            for owner in OWNERS:
                guarded(phased, work, folder, work, owner, kind)
        if os.environ.get("CROWDED"):
            guarded(crowded, work, folder, work, int(os.environ["CROWDED"]))
        for mib in sizes:
            for owner in OWNERS:
                guarded(figures, work, folder, work, owner, mib)


if __name__ == "__main__":
    main()
