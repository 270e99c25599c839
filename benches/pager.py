"""What tracking and stops cost; `make bench-pager`. Measures and prints tables, beside the targets of the project.

  first writes   ns per page: plain, by mprotect and SIGSEGV, tracked, and during a flush (programs/firstwrite.c)
  stop           of a heap of 4 GiB, by what is dirty, with 4 KiB and huge pages, engines auto and fork
                 (programs/dirtier.c)
  scattered      stop of a heap of 1 GiB of which every third page was written, and the clone in it (programs/dirtier.c)
  increments     bytes of second images at 10 % dirty (from the rows above); a python3 that idles with 300 MB
  watcher        share of a core that the agent takes for watching a flush

Environment, all optional: ONLY="writes stop scattered idle watcher", HEAP=4096 (MiB), RUNS=5, PAGES="4k huge",
ENGINES="auto auto-ask auto-cut fork" (auto-ask: engine auto, but the program itself asks and waits for the commit;
auto-cut: for the cut alone, so that there is no pre-copy).
Needs HEAP + 1 GiB of memory and twice that of disk in TMPDIR. Run it on a machine that does nothing else.
"""

import glob
import os
import time

import kit

ONLY = os.environ.get("ONLY", "writes stop scattered idle watcher").split()
HEAP = int(os.environ.get("HEAP", "4096"))
RUNS = int(os.environ.get("RUNS", "5"))
KINDS = os.environ.get("PAGES", "4k huge").split()
ENGINES = os.environ.get("ENGINES", "auto auto-ask auto-cut fork").split()
PARTS = ("stop", "threads", "inject", "maps", "track", "files", "copy", "clone", "resume")


def mark(value, most):
    """A figure beside its target."""
    return f"{most:g} {'met' if value <= most else '**missed**'}"


# --- first writes -----------------------------------------------------------------------------------------------------

WRITES = {
    "plain": ("no protection", None),
    "mprotect": ("mprotect + SIGSEGV", None),
    "mprotect-copy": ("mprotect + SIGSEGV + copy (AI-Ckpt)", None),
    "tracked": ("tracked, no flush under way", 1000),
    "tracked-random": ("the same, random order", 1000),
    "unreleased": ("during a flush, page not stored yet", 3000),
    "released": ("during a flush, page stored and released", 1000),
}


def first_writes(bench):
    """The table of first writes, for engine fork; with engine copy no clone was ever there."""
    program = bench.compile("firstwrite")
    region, sample, rate = 256, 16, 100_000_000
    flush_ms = region * kit.MIB * 1000 // rate
    rows = []
    for engine in ("fork", "copy"):
        options = ["--engine", engine, "--order", "address", "--cow", "none", "--rate", str(rate)]
        rounds = RUNS if engine == "fork" else 2
        job = bench.start(options, [program, str(region), str(sample), str(rounds), str(flush_ms)])
        try:
            lines = [line.split() for line in job.finish()]
            job.wait_end()
            flushes = [kit.dig(image, "flush.flush_ns") for image in job.images()]
        except kit.Trouble as trouble:
            kit.note(f"  first writes, {engine}: {trouble}")
            continue
        finally:
            job.remove()
        for kind, (title, most) in WRITES.items():
            if engine == "copy" and not kind.startswith("tracked"):
                continue
            found = [line for line in lines if line[0] == kind]
            middle = kit.median(float(line[2]) for line in found)
            # the third image of four in each round is started and not waited for: its flush must outlast the writes
            late = [n for n, line in enumerate(found) if int(line[4]) > 0 and int(line[4]) >= flushes[4 * n + 2]]
            title += f" ({len(late)} of {len(found)} rounds after the flush)" if late else ""
            rows.append(
                [title, engine, f"{middle:.0f}", f"{min(float(line[2]) for line in found):.0f}",
                 f"{max(float(line[2]) for line in found):.0f}", f"{kit.median(float(line[3]) for line in found):.0f}",
                 mark(middle, most) if most else ""]
            )
    print(f"\n### One first write, ns (median of {sample * 256} pages; median, least and most of {RUNS} rounds)\n")
    kit.table(["write", "engine", "median", "least", "most", "mean of pages", "target"], rows)


# --- stops ------------------------------------------------------------------------------------------------------------

STOPS = (("none", "nothing dirty", 4), ("spread 10", "1 % dirty, all over", 15), ("tenth", "one tenth dirty", 15),
         ("keep", "one tenth, written on and on", None), ("all", "all dirty", 80))


def stop_row(job, command, asks):
    """Takes RUNS images, each after `command`; returns what they say and the gaps that the program saw, ms. `asks`: the
    program's own command for it, if it asks itself."""
    shown, gaps = [], []
    for _ in range(RUNS):
        job.say(command)
        job.ask("gap")
        if asks:
            before = job.show()["image"]["epoch"]
            job.say(asks)
            shown.append(job.show_after(before))
        else:
            shown.append(job.checkpoint())
        gaps.append(int(job.ask("gap").split()[1]) / 1000)
    return shown, gaps


def stops_of(bench, program, engine, kind, full_size):
    """The rows of one engine and page size."""
    engine_option, _, asks = engine.partition("-")
    job = bench.start(["--engine", engine_option, "--keep", "2"], [program, str(HEAP), kind])
    rows = []
    try:
        job.wait_line("ready")
        full = job.checkpoint()
        full_size[engine, kind] = (kit.dig(full, "flush.bytes_stored"), [])
        for command, title, most in STOPS:
            if command == "keep" and asks:
                continue  # whoever asks does not write meanwhile
            shown, gaps = stop_row(job, command, asks)
            job.say("none")
            total = [kit.dig(image, "stop.total_ns") / 1e6 for image in shown]
            middle = sorted(range(len(total)), key=lambda n: total[n])[len(total) // 2]
            parts = sorted(((kit.dig(shown[middle], f"stop.{part}_ns") / 1e6, part) for part in PARTS), reverse=True)
            rows.append(
                [kind, engine, title, f"{total[middle]:.2f}", f"{max(total):.2f}",
                 mark(total[middle], most) if most else "", f"{kit.median(gaps):.1f}", f"{max(gaps):.1f}",
                 ", ".join(f"{part} {ms:.2f}" for ms, part in parts[:3]), shown[middle].get("engine", ""),
                 f"{kit.median(kit.dig(image, 'flush.bytes_stored') for image in shown) / 1e6:.2f}"]
            )
            kit.note(f"  {kind} {engine} {title}: {total[middle]:.2f} ms")
            if command == "tenth":
                full_size[engine, kind][1].extend(shown)
    except kit.Trouble as trouble:
        kit.note(f"  {kind} {engine}: {trouble}")
        rows.append([kind, engine, "failed", *[""] * 8])
    finally:
        job.remove()
    return rows


def stops(bench):
    """Stop times, and the size of increments."""
    program = bench.compile("dirtier")
    rows, sizes = [], {}
    for kind in KINDS:
        for engine in ENGINES:
            rows += stops_of(bench, program, engine, kind, sizes)
    print(f"\n### Stop of a {HEAP} MiB heap, ms ({RUNS} images each)\n")
    print(
        "`seen`: longest gap between two wake-ups of a 1 ms ticker in the program, so 1 ms is in it, "
        "and all of the checkpoint.\n"
    )
    kit.table(
        ["pages", "engine", "written before", "median", "most", "target", "seen, median", "most",
         "longest parts of the median", "froze by", "stored, MB"],
        rows,
    )
    print("\n### Second images at 10 % dirty, before compression\n")
    rows = []
    for (engine, kind), (full, images) in sizes.items():
        for_good = [kit.dig(image, "flush.bytes_stored") for image in images]
        if not for_good or not full:
            continue
        share = 100 * kit.median(for_good) / full
        increment = f"{kit.median(for_good) / 1e6:.1f}"
        rows.append([kind, engine, f"{full / 1e6:.1f}", increment, f"{share:.2f}", mark(share, 10.5)])
    kit.table(["pages", "engine", "full image, MB", "increment, MB", "% of full", "target, %"], rows)


# --- scattered pages --------------------------------------------------------------------------------------------------

SCATTERED = "spread 333"  # every third page


def scattered(bench):
    """The stop where what is dirty is many runs of one page: what is done per run shows here."""
    program = bench.compile("dirtier")
    heap, rows = min(HEAP, 1024), []
    # Without a pre-copy, which would leave nothing dirty to the stop.
    for engine in ("fork", "auto-cut"):
        engine_option, _, asks = engine.partition("-")
        job = bench.start(["--engine", engine_option, "--keep", "2"], [program, str(heap), "4k"])
        try:
            job.wait_line("ready")
            job.checkpoint()
            shown, _ = stop_row(job, SCATTERED, asks)
            figures = lambda part: [kit.dig(image, f"stop.{part}_ns") / 1e6 for image in shown]
            ms = {part: figures(part) for part in ("total", "track", "clone")}
            rest = [total - clone for total, clone in zip(ms["total"], ms["clone"])]
            rows.append(
                [engine, f"{kit.median(kit.dig(image, 'epoch.pages_dirty') for image in shown):.0f}",
                 *(f"{kit.median(ms[part]):.2f}" for part in ("total", "track", "clone")), f"{min(rest):.2f}",
                 f"{kit.median(rest):.2f}", f"{max(rest):.2f}", mark(kit.median(rest), 12)]
            )
        except kit.Trouble as trouble:
            kit.note(f"  scattered {engine}: {trouble}")
            rows.append([engine, "failed", *[""] * 7])
        finally:
            job.remove()
    print(f"\n### Stop of a {heap} MiB heap of 4K pages, every third written, ms ({RUNS} images each)\n")
    kit.table(
        ["engine", "pages dirty", "stop, median", "scan, median", "clone, median", "stop without the clone, least",
         "median", "most", "target"],
        rows,
    )


# --- an idle program --------------------------------------------------------------------------------------------------

IDLE = (
    "import os, sys, time\nheap = [os.urandom(1 << 20) for _ in range(300)]\n"
    "print('ready', flush=True)\ntime.sleep(100000)\n"
)


def idle(bench):
    """An idle python3 with 300 MB, 20 images."""
    job = bench.start([], ["/usr/bin/python3", "-c", IDLE])
    try:
        job.wait_line("ready")
        first = job.checkpoint()
        sizes = [kit.dig(job.checkpoint(), "flush.bytes_stored") for _ in range(19)]
        most = max(sizes) / 1e6
        print("\n### python3 that idles with 300 MB, 20 images\n")
        kit.table(
            ["first image, MB", "increments, MB: median", "most", "target"],
            [[f"{kit.dig(first, 'flush.bytes_stored') / 1e6:.1f}", f"{kit.median(sizes) / 1e6:.3f}", f"{most:.3f}",
              mark(most, 1)]],
        )
    except kit.Trouble as trouble:
        print(f"\nidle python3: {trouble}")
    finally:
        job.remove()


# --- the watcher ------------------------------------------------------------------------------------------------------


def busy_ns(pid):
    """Processor time of each thread of a process so far, by the thread's name."""
    times = {}
    for task in glob.glob(f"/proc/{pid}/task/*"):
        try:
            with open(f"{task}/schedstat") as stat, open(f"{task}/comm") as comm:
                name = comm.read().strip()
                times[name] = times.get(name, 0) + int(stat.read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # a thread that ended meanwhile
    return times


def watcher(bench):
    """The agent's threads during a long flush of a program that writes all the time."""
    program = bench.compile("dirtier")
    heap, seconds = min(HEAP, 1024), 8
    rate = heap * kit.MIB // (2 * seconds)
    job = bench.start(["--engine", "fork", "--cow", "none", "--rate", str(rate)], [program, str(heap), "4k"])
    try:
        job.wait_line("ready")
        job.say("keep")
        job.checkpoint("--no-wait")
        agent = job.status()["agent_pid"]
        time.sleep(1)
        before, begun = busy_ns(agent), time.monotonic()
        time.sleep(seconds)
        after, took = busy_ns(agent), time.monotonic() - begun
        rows = []
        for name in sorted(after, key=lambda name: before.get(name, 0) - after[name]):
            share = 100 * (after[name] - before.get(name, 0)) / 1e9 / took
            is_watcher = "watch" in name
            rows.append([name, f"{share:.2f}", mark(share, 1) if is_watcher else ""])
        print(f"\n### Threads of the agent while {heap} MiB are flushed at {rate / 1e6:.0f} MB/s, % of a core\n")
        kit.table(["thread", "%", "target"], rows)
    except kit.Trouble as trouble:
        print(f"\nwatcher: {trouble}")
    finally:
        job.remove()


def main():
    bench, load = kit.Bench(), kit.LoadWatch()
    print("## The pager")
    parts = {"writes": first_writes, "stop": stops, "scattered": scattered, "idle": idle, "watcher": watcher}
    for name, part in parts.items():
        if name in ONLY:
            kit.note(name)
            part(bench)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
