#!/usr/bin/env python3
"""One program that checkpoints itself, with VELOC's own library and with ours, in turn: how long its ranks are blocked
by a checkpoint, until it is on disk, and how long a restart takes, from memory and from disk.

VELOC has to be there: `VELOC=PREFIX` is where it was installed (`-DCOMM_QUEUE=socket_queue -DPOSIX_IO=rw`). Its scratch
is in /dev/shm and its persistent folder on disk, mode async; our store is on the same disk, memory is used above it.
Ours calls fsync, VELOC does not. Before a restart from disk what the page cache has of the files is dropped: VELOC's
are there since they were written, ours pass it by.

Run: VELOC=PREFIX [RANKS=4 MB=16 CHECKPOINTS=20 PERIOD=500 ROUNDS=3] benches/veloc.py   (after `make build`)
"""
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
RANKS, MB, CHECKPOINTS, PERIOD, ROUNDS = (
    os.environ.get(name, usual)
    for name, usual in [("RANKS", "4"), ("MB", "16"), ("CHECKPOINTS", "20"), ("PERIOD", "500"), ("ROUNDS", "3")]
)


class Library:
    """One of the two, with folders of its own."""

    def __init__(self, folder, name, include, libraries, links):
        self.name = name
        self.memory = pathlib.Path(tempfile.mkdtemp(prefix="bench-veloc-", dir="/dev/shm"))
        self.disk = folder / f"{name}.disk"
        self.program = folder / f"plate.{name}"
        self.path = libraries
        self.configuration = folder / f"{name}.cfg"
        command = ["mpicc.openmpi", "-O2", "-Wall", f"-I{include}", "-o", self.program]
        subprocess.run([*command, ROOT / "benches/objects/plate.c", f"-L{libraries}", *links], check=True)

    def configure(self, lines):
        self.disk.mkdir(exist_ok=True)
        self.configuration.write_text(lines + "mode = async\n")

    def run(self, checkpoints):
        environment = dict(os.environ, LD_LIBRARY_PATH=str(self.path), HOLDFAST_BIN=str(RELEASE / "holdfast"))
        environment["VELOC_BIN"] = str(self.path.parent / "bin")
        options = ["--allow-run-as-root", "--oversubscribe", "-np", RANKS]
        command = ["mpirun.openmpi", *options, self.program, MB, checkpoints, PERIOD, self.configuration]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            sys.exit(f"{self.name}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return json.loads(lines[-1])

    def forget(self):
        for folder in (self.memory, self.disk):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()


def drop_from_page_cache(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Veloc(Library):
    def __init__(self, folder, prefix):
        super().__init__(folder, "veloc", prefix / "include", prefix / "lib",
                         ["-lveloc-client", "-lveloc-modules", f"-Wl,-rpath-link,{prefix / 'lib'}"])
        self.configure(f"scratch = {self.memory}\npersistent = {self.disk}\n")
        self.pid = pathlib.Path(f"/dev/shm/veloc-backend-ready-{os.getuid()}")

    def begin(self):
        """Its backend, which several ranks at once do not always start: one may be killed by the signal that says that
        it is ready. The second call finds it running."""
        if self.pid.exists() and pathlib.Path(f"/proc/{self.backend()}").exists():
            sys.exit(f"veloc-backend runs as process {self.backend()}, with another configuration: end it before")
        environment = dict(os.environ, LD_LIBRARY_PATH=str(self.path))
        command = [self.path.parent / "bin/veloc-backend", self.configuration, "--disable-ec"]
        for _ in range(2):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)

    def backend(self):
        return int.from_bytes(self.pid.read_bytes()[:4], "little")

    def end(self):
        backend = pathlib.Path(f"/proc/{self.backend()}")
        os.kill(self.backend(), signal.SIGTERM)
        while backend.exists():
            time.sleep(0.05)

    def leave_memory(self):
        for file in self.memory.iterdir():
            file.unlink()


class Holdfast(Library):
    def __init__(self, folder):
        libraries = folder / "lib"
        libraries.mkdir()
        shutil.copy(RELEASE / "libveloc_client.so", libraries / "libveloc-client.so")
        super().__init__(folder, "holdfast", ROOT / "compat/veloc/include", libraries, ["-lveloc-client"])
        self.configure(f"scratch = {self.disk}\n")

    def begin(self):
        """The first rank starts the server."""

    def end(self):
        """It ends by itself."""

    def leave_memory(self):
        """The server ends after its last client."""
        socket = self.disk / "objects/serve.sock"
        end = time.monotonic() + 60
        while socket.exists() and time.monotonic() < end:
            time.sleep(0.1)


def main():
    prefix = os.environ.get("VELOC")
    if not prefix:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="bench-veloc-", dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        libraries = [Veloc(pathlib.Path(folder), pathlib.Path(prefix)), Holdfast(pathlib.Path(folder))]
        figures = {library.name: [] for library in libraries}
        for _ in range(int(ROUNDS)):
            for library in libraries:
                library.forget()
                library.begin()
                figure = library.run(CHECKPOINTS)
                for place in ("memory", "disk"):
                    if place == "disk":
                        library.leave_memory()
                        drop_from_page_cache(library.disk)
                    restart = library.run("0")
                    if restart["sum"] != figure["sum"]:
                        sys.exit(f"{library.name}: the restart from {place} has other bits")
                    figure[f"restart_{place}_ms"] = restart["restart_ms"]
                figures[library.name].append(figure)
                library.leave_memory()
                library.end()
        for library in libraries:
            shutil.rmtree(library.memory, ignore_errors=True)
    print(f"{RANKS} ranks, {MB} MB each, {CHECKPOINTS} checkpoints, one in {PERIOD} ms, {ROUNDS} rounds; median (all)")
    for name, rounds in figures.items():
        for key in rounds[0]:
            if key != "sum":
                values = [figure[key] for figure in rounds]
                print(f"{name:9} {key:18} {statistics.median(values):9.2f}  {values}")


if __name__ == "__main__":
    main()
