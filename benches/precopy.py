"""What a pre-copy stores in vain, and what it spares the stop; `make bench-precopy`. Measures and prints one table.

A heap that is written all the time (programs/rewriter.c), by pattern and pace. `stored twice`: pages that the pre-copy
stored and that had to be stored again, as a share of all pages of the image. `first`: the first image of the job, for
which there is no history; `later`: the mean of the others. Stops: of the later images, with a pre-copy and without
(the program asks, and waits for the cut alone).

Environment, all optional: HEAP=1024 (MiB), RUNS=4 (images with, and as many without), PATTERNS="sweep random hot",
PACES="10 50 200 1000 0" (MB of pages written in a second; 0: as fast as it can), PAUSE=2 (seconds between images).
Needs HEAP + 1 GiB of memory and three times that of disk in TMPDIR. Run it on a machine that does nothing else.
"""

import os
import time

import kit

HEAP = int(os.environ.get("HEAP", "1024"))
RUNS = int(os.environ.get("RUNS", "4"))
PATTERNS = os.environ.get("PATTERNS", "sweep random hot").split()
PACES = os.environ.get("PACES", "10 50 200 1000 0").split()
PAUSE = float(os.environ.get("PAUSE", "2"))


def in_vain(image):
    """Share of the image's pages, in per cent, that a pre-copy has stored and that were stored again."""
    wasted = kit.dig(image, "epoch.pages_precopy") - kit.dig(image, "flush.pages_precopied")
    return 100 * wasted / max(1, kit.dig(image, "epoch.pages_tracked"))


def of_good(image):
    """Share of what was dirty, in per cent, that was stored before the stop for good."""
    return 100 * kit.dig(image, "flush.pages_precopied") / max(1, kit.dig(image, "epoch.pages_dirty"))


def row(bench, program, pattern, pace):
    """One row of the table."""
    job = bench.start(["--keep", "2"], [program, str(HEAP), pattern, pace])
    try:
        job.wait_line("ready")
        shown, without = [], []
        for _ in range(RUNS):
            time.sleep(PAUSE)
            shown.append(job.checkpoint())
        for _ in range(RUNS):
            time.sleep(PAUSE)
            before = job.show()["image"]["epoch"]
            job.say("cut")
            without.append(job.show_after(before))
        later = shown[1:]
        stop = lambda images: f"{kit.median(kit.dig(image, 'stop.total_ns') / 1e6 for image in images):.1f}"
        mean = lambda values: sum(values) / max(1, len(values))
        share = lambda image: kit.dig(image, "epoch.pages_dirty") / kit.dig(image, "epoch.pages_tracked", 1)
        dirty = mean([share(image) for image in later])
        return [
            pattern, pace if pace != "0" else "all it can", f"{100 * dirty:.0f}", f"{in_vain(shown[0]):.1f}",
            f"{mean([in_vain(image) for image in later]):.1f}", f"{max(in_vain(image) for image in shown):.1f}",
            f"{of_good(shown[0]):.0f}", f"{mean([of_good(image) for image in later]):.0f}", stop(later), stop(without),
            "/".join(sorted({image.get("engine", "") for image in later})),
        ]
    except kit.Trouble as trouble:
        kit.note(f"  {pattern} {pace}: {trouble}")
        return [pattern, pace, "failed", *[""] * 8]
    finally:
        job.remove()


def main():
    bench, load = kit.Bench(), kit.LoadWatch()
    program = bench.compile("rewriter")
    rows = []
    for pattern in PATTERNS:
        for pace in PACES:
            rows.append(row(bench, program, pattern, pace))
            kit.note("  " + " ".join(rows[-1]))
    print(f"\n### Pre-copy of a heap of {HEAP} MiB that is written all the time ({RUNS} images with, {RUNS} without)\n")
    kit.table(
        ["pattern", "MB/s", "dirty, % of image", "stored twice, % of image: first", "later", "most",
         "stored for good before the stop, % of dirty: first", "later", "stop, ms", "without pre-copy", "froze by"],
        rows,
    )
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
