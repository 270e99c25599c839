"""How long a rollback takes, beside the same in new processes: kill -9 and restart; `make bench-rollback`. Prints a
table.

A heap of noise (programs/dirtier.c) of HEAP MiB, all of it in an image; then SPREAD permille of its pages are written,
one here and one there, and the program goes back to the image: by `holdfast rollback`, or by kill -9 and `holdfast
restart`. Each is measured from the start of the command that goes back to the first line that the program prints
because of a line to its standard input, and to the sum of all words, which is compared: it needs all memory, and the
devices. The kill, and the end of the agent, before which no restart can begin, are not counted. Then the same with
DEVICE MiB of device memory besides, of which SPREAD permille of the chunks are written, on the driver in the folder
DRIVER, with a keeper (HOLDFAST_CUDA_DATA=keeper): once with a GPU cache that has room for an image, once with none. The
stand-in driver interprets the kernels that hash device memory: a second for 16 MiB, in a rollback and in a restart.

Environment, all optional: HEAP=1024, SPREAD=100, DEVICE=32, RUNS=5, WAYS="--eager --lazy", DRIVER=FOLDER.
Needs three times HEAP of memory, so that all stays in the page cache, and twice HEAP of disk in TMPDIR.
"""

import json
import os
import shutil
import time

import kit
import restart

HEAP = int(os.environ.get("HEAP", "1024"))
SPREAD = int(os.environ.get("SPREAD", "100"))
DEVICE = int(os.environ.get("DEVICE", "32"))
RUNS = int(os.environ.get("RUNS", "5"))
WAYS = os.environ.get("WAYS", "--eager --lazy").split()


def stand_in(bench):
    """A folder with the driver of the tests under the name that programs look for."""
    folder = os.path.join(bench.work, "driver")
    os.mkdir(folder)
    library = os.path.join(os.path.dirname(kit.HOLDFAST), "libholdfast_stand_in.so")
    # A copy: mappings must have that name.
    shutil.copyfile(library, os.path.join(folder, "libcuda.so.1"))
    return folder


def rollback(bench, job, expected):
    """Writes and goes back once: milliseconds to the first answer and to the sum, and what the command says."""
    offset = job.offset
    job.say(f"scatter {SPREAD}")
    begun = time.monotonic()
    said = json.loads(bench.holdfast("rollback", job.name, "--json"))
    # What was printed since is cut off.
    job.offset = offset
    job.ask("gap")
    taken = (time.monotonic() - begun) * 1000
    if job.ask("sum") != expected:
        raise kit.Trouble(f"{job.name} rolled back has another memory")
    return taken, (time.monotonic() - begun) * 1000, said


def row(title, way, times, rollback, rest):
    """One row. `times`: pairs to the first answer and to the sum; `rollback`: the median to the sum of a rollback."""
    cells = [title, way]
    for at in (0, 1):
        each = [pair[at] for pair in times]
        cells += [f"{kit.median(each):.0f}", f"{min(each):.0f} to {max(each):.0f}"]
    return cells + [f"{kit.median(pair[1] for pair in times) / rollback:.2f}", *rest]


def measure(bench, title, options, command, environment):
    """All ways for one program."""
    kit.note(f"{title} ...")
    bench.environment.update(environment)
    job = bench.start(options, command)
    job.wait_line("ready")
    expected = job.ask("sum")
    job.checkpoint()
    offset = job.offset
    rows, found = [], []
    for _ in range(RUNS):
        found.append(rollback(bench, job, expected))
        # The next one begins where the image ends.
        bench.holdfast("rollback", job.name)
        job.offset = offset
    said = found[-1][2]
    sizes = [said["compared_bytes"], said["written_bytes"], said["device_cached_bytes"]]
    sizes.append(said["device_bytes"] - said["device_cached_bytes"])
    stop = kit.median(said["stop_ns"] / 1e6 for *_, said in found)
    times = [(first, whole) for first, whole, _ in found]
    base = kit.median(whole for _, whole in times)
    rows.append(
        row(title, "rollback", times, base, [f"{stop:.0f}", *(f"{size / kit.MIB:.0f}" for size in sizes)])
    )
    job.kill()
    job.wait_end()
    for way in WAYS:
        # Of a restart: to the first answer, and from there to the sum.
        each = [restart.restart(bench, job, way, expected)[0] for _ in range(RUNS)]
        times = [(taken[0], taken[0] + taken[1]) for taken in each]
        rows.append(row(title, f"kill, restart {way}", times, base, ["-"] * 5))
    job.remove()
    return rows


def main():
    """The heap alone, then with device memory."""
    bench, load = kit.Bench(), kit.LoadWatch()
    program = bench.compile("dirtier")
    rows = measure(bench, f"{HEAP} MiB", ["--keep", "2"], [program, str(HEAP), "plain"], {})
    if DEVICE > 0:
        driver = os.environ.get("DRIVER") or stand_in(bench)
        environment = {"LD_LIBRARY_PATH": driver, "HOLDFAST_CUDA_DATA": "keeper"}
        command = [program, str(HEAP), "plain", str(DEVICE)]
        for title, cache in (("all in the GPU cache", f"{3 * DEVICE}M"), ("no GPU cache", "0")):
            options = ["--keep", "2", "--gpu-cache", cache]
            rows += measure(bench, f"{HEAP} MiB, {DEVICE} MiB on the device, {title}", options, command, environment)
    print(f"\n### Back to an image, {SPREAD / 10:.0f} % written since, ms (median of {RUNS}); all sums are equal\n")
    head = ["program", "way", "first line", "from to", "sum", "from to", "sum / rollback", "stop"]
    kit.table(head + ["compared, MiB", "written", "device, cache", "device, store"], rows)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
