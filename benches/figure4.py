"""Two real codes with heaps of 500 MB and more: what history, AI-Ckpt's own order, address order and sync add to their
run time, by the bound on copies (figure 4 of AI-Ckpt); `make bench-figure4`.

LAMMPS from Debian (melt.in, 1.7 million atoms) and a code with the memory pattern of an atmospheric model
(programs/lattice.c), one thread each. Checkpoints are asked for from outside when the program has printed certain
steps. As in the paper the store has 55 MB/s and pages are caught one by one (engine `slots`); a quarter of a run is as
long as the flush of an image, nearly.

Environment, all optional:
  CODES="lattice lammps"     BOUNDS="0 4 16 64 256" (MiB)     ENGINES="slots" (also: fork)
  ORDERS="history classes address"
  RATE=55000000              bytes per second of the store; with 220000000 a quarter of the STEPS is enough
  STEPS=72                   steps per run, for both codes (else 72 of lattice, 28 of LAMMPS)
  CHECKPOINTS="18 36 54"     the steps after which an image is taken (else after each quarter but the last)
  REPEAT=1                   runs per cell; medians are shown. The program without checkpoints runs before and after.
"""

import os
import shutil

import kit

CODES = os.environ.get("CODES", "lattice lammps").split()
BOUNDS = kit.numbers("BOUNDS", "0 4 16 64 256", int)
ENGINES = os.environ.get("ENGINES", "slots").split()
ORDERS = os.environ.get("ORDERS", "history classes address").split()
RATE = int(os.environ.get("RATE", "55000000"))
STEPS = {"lattice": 72, "lammps": 28}
REPEAT = int(os.environ.get("REPEAT", "1"))
# No network and no helper process of Open MPI: one process computes, and neither could be checkpointed.
MPI = {
    "OMPI_MCA_btl": "self",
    "OMPI_MCA_ess_singleton_isolated": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
}


class Code:
    """A program, how its steps look on its output, and how it tells the time of its loop."""

    def __init__(self, bench, name):
        self.name, self.environment = name, {}
        self.steps = int(os.environ.get("STEPS", STEPS[name]))
        quarters = " ".join(str(self.steps * part // 4) for part in (1, 2, 3))
        self.checkpoints = kit.numbers("CHECKPOINTS", quarters, int)
        if name == "lattice":
            self.command = [bench.compile("lattice"), "512", str(self.steps)]
        else:
            self.environment = MPI
            script = os.path.join(kit.ROOT, "benches/melt.in")
            self.command = ["lmp", "-var", "n", "75", "-var", "steps", str(self.steps), "-in", script, "-log", "none"]

    def step(self, number):
        """How the line of a step begins."""
        return f"step {number}" if self.name == "lattice" else f"{number} "

    def loop(self, lines):
        """Seconds of the loop, without start and end."""
        if self.name == "lattice":
            return float(next(line.split()[1] for line in lines if line.startswith("loop ")))
        return float(next(line.split()[3] for line in lines if line.startswith("Loop time of")))


def run(bench, code, options, checkpoints):
    """One run; returns the time of its loop and what its images say."""
    job = bench.start(options, code.command, code.environment)
    try:
        if code.name == "lammps":
            job.wait_line("Step")
        for step in checkpoints:
            job.wait_line(code.step(step))
            job.checkpoint("--no-wait")
        lines = job.finish()
        if not checkpoints:
            return code.loop(lines), []
        job.wait_end()
        return code.loop(lines), job.images()
    finally:
        job.remove()


def measure(bench, code, options, checkpoints=()):
    """Median of REPEAT runs, or None and a note."""
    try:
        runs = sorted((run(bench, code, options, checkpoints) for _ in range(REPEAT)), key=lambda one: one[0])
    except kit.Trouble as trouble:
        kit.note(f"  {code.name} {' '.join(options)}: {trouble}")
        return None
    kit.note(f"  {code.name} {' '.join(options)}: {runs[len(runs) // 2][0]:.2f} s")
    return runs[len(runs) // 2]


def row(title, base, one, sync):
    """One line of the table; `sync`: what sync adds."""
    if one is None:
        return [*title, "failed", *[""] * 9]
    took, images = one
    counts = [
        sum(kit.dig(image, f"epoch.flush.{name}") for image in images) // len(images)
        for name in ("wait", "cow", "avoided")
    ]
    after = [kit.dig(image, "epoch.ended.after") for image in images[1:]]
    return [
        *title,
        f"{took - base:.2f}",
        f"{100 * (took - base) / base:.1f}",
        f"{100 * (1 - (took - base) / sync):.0f}" if sync > 0 else "",
        f"{kit.median(kit.dig(image, 'flush.flush_ns') for image in images) / 1e9:.2f}",
        *counts,
        sum(after) // len(after) if after else "",
        f"{max(kit.dig(image, 'epoch.copies_peak') for image in images) / 256:.1f}",
        f"{kit.median(kit.dig(image, 'epoch.held_ns') for image in images) / 1e9:.2f}",
    ]


def compare(found, base):
    """What history and classes add less than address order; what cannot be told from nothing is left out."""
    added = {tuple(title): one[0] - base for title, one in found if one}
    for bound in BOUNDS:
        for engine in ENGINES:
            for order in ("history", "classes"):
                ours, address = (added.get((bound, engine, one)) for one in (order, "address"))
                if ours and address and ours > 0.02 * base:
                    times = f"{address / ours:.2f} times"
                    print(f"\n{bound} MiB, {engine}: address order adds {times} what {order} adds.")


HEAD = (
    "bound, MiB|engine|order|added, s|added, %|saved against sync, %|flush, s|WAIT|COW|AVOIDED|AFTER|peak, MiB|held, s"
).split("|")


def measure_code(bench, code):
    """The table of one program."""
    rate = ["--rate", str(RATE)]
    before = measure(bench, code, [])
    if before is None:
        return
    rows = []
    found = []
    for engine, order, bound in [("sync", "sync", None), *((e, o, b) for b in BOUNDS for e in ENGINES for o in ORDERS)]:
        if engine == "sync":
            options = ["--engine", "sync", *rate]
        else:
            options = ["--engine", engine, "--order", order, "--cow", f"{bound}M" if bound else "0", *rate]
        title = ["-" if bound is None else bound, engine, order]
        found.append((title, measure(bench, code, options, code.checkpoints)))
    after = measure(bench, code, []) or before
    base = (before[0] + after[0]) / 2
    sync = next((one[0] - base for title, one in found if title[1] == "sync" and one), 0.0)
    rows = [row(title, base, one, sync) for title, one in found]
    print(
        f"\n### {code.name}: {code.steps} steps in {base:.2f} s without checkpoints "
        f"({before[0]:.2f} before, {after[0]:.2f} after), "
        f"images after {' '.join(map(str, code.checkpoints))}\n"
    )
    kit.table(HEAD, rows)
    compare(found, base)


def main():
    bench, load = kit.Bench(), kit.LoadWatch()
    print(
        f"## Real codes, store {RATE / 1e6:g} MB/s\n\n"
        f"Medians of {REPEAT} run(s); counts per image; `held`: how long the program was held at the bound, per image."
    )
    for name in CODES:
        if name == "lammps" and not shutil.which("lmp"):
            print("\nlammps: not measured, `lmp` is not installed (apt-get install lammps)")
            continue
        measure_code(bench, Code(bench, name))
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
