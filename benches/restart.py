"""How long a restart takes by how the image came about; `make bench-restart`. Prints tables, beside the floor.

A heap of noise (programs/dirtier.c), all of it in the first image, then INCREMENTS images of which each holds SPREAD
permille of its pages, one here and one there, each time others. Every way of restarting is measured on both, from the
start of `holdfast restart` to the first line that the program prints because of a line to its standard input. After
each restart the sum of all words of the heap is compared, twice: how long the first takes, which touches all of it, and
the second, which runs at full speed, is in the table. What the parts of it cost (`files` to `total`) is what the
agent notes.

  floor          the segments' bytes read into fresh memory by as many threads as there are processors
                 (programs/fillfloor.c): a thread that checks nothing and copies once

Environment, all optional: HEAP=1024 (MiB), INCREMENTS=5, SPREAD=100, RUNS=5, WAYS="--eager --lazy", PAGES="plain".
Needs three times HEAP of memory, so that all stays in the page cache, and twice HEAP of disk in TMPDIR.
"""

import glob
import os
import re
import signal
import subprocess
import time

import kit

HEAP = int(os.environ.get("HEAP", "1024"))
INCREMENTS = int(os.environ.get("INCREMENTS", "5"))
SPREAD = int(os.environ.get("SPREAD", "100"))
RUNS = int(os.environ.get("RUNS", "5"))
WAYS = os.environ.get("WAYS", "--eager --lazy").split()
KINDS = os.environ.get("PAGES", "plain").split()
PHASES = ("files", "map", "memory", "threads", "total")
AMOUNTS = ("copied_bytes", "mapped_bytes")


def noted(bench, job):
    """What the agent has noted of the last restart."""
    with open(os.path.join(bench.store, job.name, "agent.log"), errors="replace") as log:
        return next((line for line in reversed(log.read().splitlines()) if "restart number" in line), "")


def restart(bench, job, way, expected):
    """Restarts the newest image once; returns milliseconds until the first answer, those of two sums over all memory
    after it, and the agent's own figures."""
    before, offset = noted(bench, job), job.offset
    os.truncate(job.output, offset)  # as it was when the image was made
    begun = time.monotonic()
    with open(job.errors, "ab") as errors, open(job.output, "ab") as out:
        job.front = subprocess.Popen(
            [kit.HOLDFAST, "restart", job.name, way],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            cwd=bench.work,
            env=bench.environment,
        )
    job.ask("gap")
    taken = [(time.monotonic() - begun) * 1000]
    for _ in range(2):
        begun = time.monotonic()
        if job.ask("sum") != expected:
            raise kit.Trouble(f"{job.name} restarted {way} has another memory")
        taken.append((time.monotonic() - begun) * 1000)
    while (figures := noted(bench, job)) in ("", before):
        time.sleep(0.002)
    os.kill(int(re.search(r"as process (\d+)", figures).group(1)), signal.SIGKILL)
    job.front.wait()
    job.wait_end()
    job.offset = offset
    return taken, {name: int(value) for name, value in re.findall(r"(\w+): (\d+)", figures)}


def rows_of(bench, job, title, expected):
    """All ways for the newest image of a job whose program is dead."""
    rows = []
    for way in WAYS:
        found = [restart(bench, job, way, expected) for _ in range(RUNS)]
        times = [taken[0] for taken, _ in found]
        sums = [kit.median(taken[at] for taken, _ in found) for at in (1, 2)]
        phases = [kit.median(numbers.get(f"{name}_ns", 0) / 1e6 for _, numbers in found) for name in PHASES]
        amounts = [found[-1][1].get(name, 0) // kit.MIB for name in AMOUNTS]
        rows.append(
            [title, way, f"{kit.median(times):.0f}", f"{min(times):.0f}", f"{max(times):.0f}"]
            + [f"{value:.0f}" for value in sums + phases]
            + [str(amount) for amount in amounts]
        )
    return rows


def floor(bench, job):
    """Times of the program that only reads the segments of a job into fresh memory."""
    program = bench.compile("fillfloor")
    segments = sorted(glob.glob(os.path.join(bench.store, job.name, "segment-*")))
    rows = []
    for kind in ("4k", "huge"):
        found = []
        for _ in range(RUNS):
            done = subprocess.run([program, kind, *segments], capture_output=True, text=True, check=True)
            found.append(float(done.stdout.split()[0]))
        rows.append([kind, f"{kit.median(found):.0f}", f"{min(found):.0f}", f"{max(found):.0f}"])
    return rows


def measure(bench, program, kind):
    """The rows of one kind of heap, and its floor."""
    job = bench.start(["--keep", "1"], [program, str(HEAP), kind])
    job.wait_line("ready")
    expected = job.ask("sum")
    job.checkpoint()
    job.kill()
    job.wait_end()
    rows = rows_of(bench, job, f"{kind}, one image", expected)
    job.remove()
    job = bench.start(["--keep", "1"], [program, str(HEAP), kind])
    job.wait_line("ready")
    job.checkpoint()
    for _ in range(INCREMENTS):
        job.say(f"scatter {SPREAD}")
        expected = job.ask("sum")
        job.checkpoint()
    job.kill()
    job.wait_end()
    rows += rows_of(bench, job, f"{kind}, {INCREMENTS} increments", expected)
    least = floor(bench, job)
    job.remove()
    return rows, least


def main():
    """All kinds of heaps."""
    bench, load = kit.Bench(), kit.LoadWatch()
    program = bench.compile("dirtier")
    rows, least = [], []
    for kind in KINDS:
        kit.note(f"{kind} ...")
        more, least = measure(bench, program, kind)
        rows += more
    print(f"\n### Restart of {HEAP} MiB to the first new line, ms (median, least, most of {RUNS}; warm cache)\n")
    head = ["image", "way", "median", "least", "most", "sum", "sum again", *PHASES, "copied, MiB", "mapped, MiB"]
    kit.table(head, rows)
    print("\n### Floor: the segments read into fresh memory by a thread for each processor, ms\n")
    kit.table(["pages", "median", "least", "most"], least)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
