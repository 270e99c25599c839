"""What a stop of many processes costs; `make bench-tree`.

Measures and prints tables, beside the targets of the project.

  stop    of a job of 20 processes with 10 threads each (programs/idlers.c) that do nothing, so that nothing is dirty
  check   wall time of `holdfast check` on the same job
  restart wall time of its restart, until all processes are back

Environment, all optional: SIZES="1x1 20x1 20x10" (processes x threads), RUNS=20. Run it on a machine that does nothing
else.
"""

import os
import subprocess
import time

import kit

SIZES = os.environ.get("SIZES", "1x1 20x1 20x10").split()
RUNS = int(os.environ.get("RUNS", "20"))
ASKED = "20x10"
PARTS = ("stop", "threads", "inject", "maps", "track", "files", "copy", "clone", "resume")


def mark(value, most, size):
    """A figure beside its target, which is for one size."""
    return f"{most:g} {'met' if value <= most else '**missed**'}" if size == ASKED else ""


def stops(job):
    """RUNS images after a first one: what they say of their stops."""
    time.sleep(2.5)  # of processes that have just been made more is read inside the stop
    first = job.checkpoint()
    return first, [job.checkpoint() for _ in range(RUNS)]


def checks(bench, job):
    """Wall times of `holdfast check`, ms."""
    times = []
    for _ in range(RUNS):
        begun = time.monotonic()
        bench.holdfast("check", job.name)
        times.append((time.monotonic() - begun) * 1000)
    return times


def restart(bench, job):
    """Wall time until the restarted job is there, ms."""
    job.kill()
    job.wait_end()
    begun = time.monotonic()
    job.front = subprocess.Popen(
        [kit.HOLDFAST, "restart", job.name], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=bench.work, env=bench.environment,
    )
    while not job.status().get("pid"):
        if job.front.poll() is not None or time.monotonic() - begun > 60:
            raise kit.Trouble(f"{job.name} does not come back: {job.last_words()}")
    return (time.monotonic() - begun) * 1000


def row_of(bench, program, size):
    """The rows of one size: stops, and the commands."""
    processes, threads = size.split("x")
    job = bench.start(["--keep", "3"], [program, processes, threads])
    try:
        job.wait_line("ready")
        first, shown = stops(job)
        total = [kit.dig(image, "stop.total_ns") / 1e6 for image in shown]
        middle = sorted(range(len(total)), key=lambda n: total[n])[len(total) // 2]
        parts = sorted(((kit.dig(shown[middle], f"stop.{part}_ns") / 1e6, part) for part in PARTS), reverse=True)
        looked = checks(bench, job)
        value, look = total[middle], kit.median(looked)
        stop = [size, f"{kit.dig(first, 'stop.total_ns') / 1e6:.2f}", f"{value:.2f}", f"{max(total):.2f}",
                mark(value, 15, size), ", ".join(f"{part} {ms:.2f}" for ms, part in parts[:4]),
                f"{kit.median(kit.dig(image, 'flush.bytes_stored') for image in shown) / 1e6:.2f}"]
        command = [size, f"{look:.1f}", f"{max(looked):.1f}", mark(look, 100, size)]
        try:
            command.append(f"{restart(bench, job):.0f}")
        except kit.Trouble as trouble:
            kit.note(f"  {size}: {trouble}")
            command.append("failed")
        return stop, command
    finally:
        job.remove()


def main():
    bench, load = kit.Bench(), kit.LoadWatch()
    program = bench.compile("idlers")
    stop_rows, command_rows = [], []
    for size in SIZES:
        kit.note(size)
        try:
            stop, command = row_of(bench, program, size)
        except kit.Trouble as trouble:
            kit.note(f"  {size}: {trouble}")
            stop, command = [size, "failed", *[""] * 5], [size, "failed", "", "", ""]
        stop_rows.append(stop)
        command_rows.append(command)
    print(f"## Many processes\n\n### Stop with nothing dirty, ms ({RUNS} images each)\n")
    kit.table(
        ["processes x threads", "first", "median", "most", "target", "longest parts of the median", "stored, MB"],
        stop_rows,
    )
    print(f"\n### Commands, ms ({RUNS} times each, restart once)\n")
    kit.table(["processes x threads", "check, median", "most", "target", "restart"], command_rows)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
