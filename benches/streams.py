#!/usr/bin/env python3
"""Versions of objects in memory (docs/streams.md), beside copies and files in a tmpfs and on disk: in turn, in one run.

Tables after the figures of NVStream (HPDC'18): put rates by size of object (figures 1 and 5), a consumer beside its
producer (figure 8), deltas of codes that write a part of their objects (figures 9 and 10; what part is theirs, the code
is ours: `benches/streams.c` writes so many per cent of the pages of all objects).

Run: [MB=200 ROUNDS=6] benches/streams.py   (after `make build`; two times MB and a log of five times MB in /dev/shm)
"""
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
MB, ROUNDS = int(os.environ.get("MB", "200")), int(os.environ.get("ROUNDS", "6"))
SIZES = [32 << 10, 128 << 10, 1 << 20, 10 << 20]
#: Per cent of pages written between two versions: NVStream's figure 9.
CODES = {"GTC": 53, "CM1": 93, "miniAMR": 1}


class Bench:
    def __init__(self, folder):
        self.memory = pathlib.Path(tempfile.mkdtemp(prefix="bench-streams-", dir="/dev/shm"))
        self.disk = folder
        self.program = folder / "streams"
        include, source = ROOT / "compat/nvstream/include", ROOT / "benches/streams.c"
        command = ["gcc", "-O2", "-Wall", "-Wextra", f"-I{include}", "-o", self.program, source]
        subprocess.run([*command, f"-L{RELEASE}", "-lnvstream"], check=True)
        self.environment = dict(
            os.environ,
            LD_LIBRARY_PATH=str(RELEASE),
            HOLDFAST_STREAMS=str(self.memory / "logs"),
            HOLDFAST_STREAM_SIZE=f"{MB * 5}M",
        )

    def run(self, way, size, percent=100, **variables):
        """Seconds of a put, and of the computing before it: medians of the rounds after the first ones, in which memory
        is made: of a log five, until it has been filled once. And of a put in that time."""
        shutil.rmtree(self.memory / "logs", ignore_errors=True)
        folder = self.memory / "files" if way == "file" else self.disk / "files"
        folder.mkdir(exist_ok=True)
        words = [self.program, way, size, MB << 20, ROUNDS + 6, folder, percent]
        done = subprocess.run(
            list(map(str, words)), env={**self.environment, **variables}, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{way}: {done.stderr}")
        rows = [list(map(float, line.split())) for line in done.stdout.splitlines()]
        shutil.rmtree(folder)
        median = lambda column, rows: statistics.median(row[column] for row in rows)
        return median(1, rows[6:]), median(2, rows[6:]), median(1, rows[1:4])

    def close(self):
        shutil.rmtree(self.memory)


def table(head, rows):
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)))
    print(flush=True)


def puts(bench):
    print(f"MB/s of {MB} MB by size of object; times: snapshot against file in tmpfs, and against memcpy")
    ways = ["memcpy", "clflush", "nvs", "put", "file", "sync"]
    rows = []
    for size in SIZES:
        taken = {way: bench.run(way, size) for way in ways}
        rate = {way: MB / taken[way][0] for way in ways}
        rate["new"] = MB / taken["nvs"][2]
        times = [f"{rate['nvs'] / rate['file']:.2f}", f"{rate['nvs'] / rate['memcpy']:.2f}"]
        rows.append([f"{size >> 10} KiB", *(f"{rate[way]:.0f}" for way in [*ways, "new"]), *times])
    names = ["memcpy", "+clflush", "snapshot", "put", "tmpfs", "disk+fdatasync", "new log", "/tmpfs", "/memcpy"]
    table(["object", *names], rows)


def deltas(bench):
    print("A version and the computing before it, beside a copy of all, and beside written pages found by mprotect")
    rows = []
    for code, percent in CODES.items():
        plain, compute, _ = bench.run("memcpy", 1 << 20, percent)
        put, with_notes, _ = bench.run("nvs", 1 << 20, percent)
        deltas, noted, _ = bench.run("nvs", 1 << 20, percent, HOLDFAST_STREAM_DELTAS="always")
        other, with_faults, _ = bench.run("protect", 1 << 20, percent)
        rows.append(
            [
                code,
                f"{percent} %",
                f"{plain * 1e3:.0f}",
                f"{put * 1e3:.0f}",
                f"{deltas * 1e3:.0f}",
                f"{other * 1e3:.0f}",
                f"{(put + with_notes) / (plain + compute):.2f}",
                f"{(deltas + noted) / (plain + compute):.2f}",
                f"{(other + with_faults) / (plain + compute):.2f}",
            ]
        )
    names = ["code", "written", "memcpy ms", "snapshot ms", "deltas ms", "mprotect ms"]
    table([*names, "iteration", "with deltas", "with mprotect"], rows)


def reads(bench):
    """A consumer that reads all bytes of the newest version, through the log and through files."""
    bench.run("nvs", 1 << 20)
    reader = "import sys; sys.path.insert(0, sys.argv[1]); import numpy, time; from holdfast import streams\n" + (
        "s = streams.open('bench/0'); s.seek(); names = list(s.objects())\n"
        "def go():\n"
        "    b = time.monotonic(); [s.array(n, 'uint64').sum() for n in names]; return time.monotonic() - b\n"
        "print(min(go() for _ in range(5)))"
    )
    by_log = subprocess.run(
        ["/usr/bin/python3", "-c", reader, ROOT / "python"], env=bench.environment, capture_output=True, text=True
    )
    folder = bench.memory / "read"
    folder.mkdir()
    for i in range(MB):
        (folder / f"v{i}").write_bytes(bytes([i & 255]) * (1 << 20))
    files = (
        "import sys, numpy, time, os\n"
        "names = [os.path.join(sys.argv[1], n) for n in os.listdir(sys.argv[1])]\n"
        "def go():\n"
        "    b = time.monotonic(); [numpy.fromfile(n, 'uint64').sum() for n in names]; return time.monotonic() - b\n"
        "print(min(go() for _ in range(5)))"
    )
    by_file = subprocess.run(["/usr/bin/python3", "-c", files, folder], capture_output=True, text=True)
    shutil.rmtree(folder)
    log, file = float(by_log.stdout), float(by_file.stdout)
    print(f"Reading and adding up {MB} MB: log {log * 1e3:.0f} ms, files in tmpfs {file * 1e3:.0f} ms: "
          f"{(file / log - 1) * 100:.0f} % faster\n")


def main():
    print(f"load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as folder:
        bench = Bench(pathlib.Path(folder))
        try:
            puts(bench)
            deltas(bench)
            reads(bench)
        finally:
            bench.close()


if __name__ == "__main__":
    main()
