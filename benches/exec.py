"""What starting a program costs a script under Holdfast; `make bench-exec`.

Shells that wait for orders run /bin/true, by turns, in batches: one as it is, one with an empty library preloaded (what
LD_PRELOAD costs, whatever is in the library), one with libholdfast and no agent, one under `holdfast run`; the last two
with jemalloc and without (`--malloc system`). Printed of one /bin/true, over all batches: the least and the median
time, and the processor time of the shell and its children, which others on the machine change least (the agent's is
not in it).

Environment, all optional: ROUNDS=100 (batches of each), BATCH=20 (programs in one), PROGRAM=/bin/true.
"""

import os
import subprocess
import sys

import kit

ROUNDS = int(os.environ.get("ROUNDS", "100"))
BATCH = int(os.environ.get("BATCH", "20"))
PROGRAM = os.environ.get("PROGRAM", "/bin/true")
TARGET = 1.15
LIBRARY = os.path.join(os.path.dirname(kit.HOLDFAST), "libholdfast.so")
SCRIPT = f"""while read order; do
    begin=$EPOCHREALTIME
    for ((i = 0; i < {BATCH}; i++)); do {PROGRAM} >/dev/null; done
    end=$EPOCHREALTIME
    times >times.$$
    read -r -d '' used <times.$$
    echo $order $(( ${{end/[.,]/}} - ${{begin/[.,]/}} )) $used
done"""
SHELL = ["bash", "-c", SCRIPT]


class Shell:
    """A shell without an agent."""

    def __init__(self, bench, variables):
        self.process = subprocess.Popen(
            SHELL,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=bench.work,
            env=dict(bench.environment, **variables),
        )
        nice = os.environ.get("NICE")
        if nice:
            os.setpriority(os.PRIO_PROCESS, self.process.pid, int(nice))

    def ask(self, order):
        """As `kit.Job.ask`."""
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self):
        """It has nothing more to do."""
        self.process.stdin.close()
        self.process.wait()


def empty_library(bench):
    """A library without anything in it."""
    path = os.path.join(bench.work, "libempty.so")
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", path], check=True)
    return path


def measure(shell):
    """Of one batch: time, us; processor time of all so far, us."""
    words = shell.ask("go").split()
    seconds = lambda text: int(text.split("m")[0]) * 60 + float(text.split("m")[1].rstrip("s"))
    return int(words[1]) / BATCH, sum(map(seconds, words[2:6])) * 1e6


def main():
    bench, load = kit.Bench(), kit.LoadWatch()
    ours = {"LD_PRELOAD": LIBRARY, "HOLDFAST_NO_AGENT": "1"}
    shells = {
        "plain": Shell(bench, {}),
        "an empty library": Shell(bench, {"LD_PRELOAD": empty_library(bench)}),
        "libholdfast, no agent, malloc of the C library": Shell(bench, {**ours, "HOLDFAST_MALLOC": "system"}),
        "libholdfast, no agent": Shell(bench, ours),
        "holdfast run --malloc system": bench.start(["--malloc", "system"], SHELL),
        "holdfast run": bench.start([], SHELL),
    }
    times, processor = {name: [] for name in shells}, {name: [] for name in shells}
    for number in range(ROUNDS):
        if sys.stderr.isatty() and number % 10 == 0:
            kit.note(f"round {number} of {ROUNDS}")
        for name, shell in shells.items():
            time, used = measure(shell)
            times[name].append(time)
            processor[name].append(used)
    for shell in shells.values():
        shell.end() if isinstance(shell, Shell) else shell.finish()
    # The first batch has what is found out once.
    used = {name: (all_of_it[-1] - all_of_it[0]) / BATCH / (ROUNDS - 1) for name, all_of_it in processor.items()}
    figures = {name: (min(all_of_it), kit.median(all_of_it), used[name]) for name, all_of_it in times.items()}
    rows = []
    for name, values in figures.items():
        ratios = [value / base for value, base in zip(values, figures["plain"])]
        verdict = f"{TARGET} {'met' if ratios[0] <= TARGET else '**missed**'}" if name == "holdfast run" else ""
        cells = (text for pair in zip(values, ratios) for text in (f"{pair[0]:.0f}", f"{pair[1]:.2f}"))
        rows.append([name, *cells, verdict])
    print(f"## {PROGRAM} in a shell script, us ({ROUNDS} batches of {BATCH} each, by turns)\n")
    kit.table(["", "least", "times plain", "median", "times plain", "processor", "times plain", "target"], rows)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
