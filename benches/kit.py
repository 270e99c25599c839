"""What the measurements share: a folder of their own, compiled programs, jobs under holdfast, tables.

Used by the measurements here, which print, and assert nothing. Standard library only. Everything lies in a folder
under TMPDIR (default /tmp) that is removed at the end; only processes that were started here are ended.

NICE=-15 in the environment, as root: programs and agents get this priority, also against other sessions (autogroup(7),
sched(7)); for a machine that others use as well. It runs in a session of its own then: the priority of a session stays
behind, and what else runs in it would keep everybody else from the processor.
"""

import atexit
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOLDFAST = os.environ.get("HOLDFAST", os.path.join(ROOT, "target/release/holdfast"))
MIB = 1 << 20


class Trouble(Exception):
    """A job or a command did not do what the measurement needs; the row is left out and the reason printed."""


class Bench:
    """The folder of one measurement: store, programs, output files."""

    def __init__(self):
        if os.environ.get("NICE") and os.getsid(0) != os.getpid():
            os.execvp("setsid", ["setsid", "--wait", sys.executable, *sys.argv])
        self.work = tempfile.mkdtemp(prefix="holdfast-bench-", dir=os.environ.get("TMPDIR", "/tmp"))
        self.store = os.path.join(self.work, "store")
        os.mkdir(self.store, 0o700)
        self.environment = dict(os.environ, HOLDFAST_STORE=self.store, LC_ALL="C")
        self.jobs = []
        self.count = 0
        atexit.register(self.clean)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(1))

    def clean(self):
        """Ends what still runs and removes the folder."""
        for job in self.jobs:
            job.kill()
        shutil.rmtree(self.work, ignore_errors=True)

    def compile(self, name):
        """Compiles programs/NAME.c and returns the path of the program."""
        program = os.path.join(self.work, name)
        options = "-std=gnu11 -O2 -Wall -pthread".split()
        includes = ["-I", f"{ROOT}/tests/programs", "-I", f"{ROOT}/preload/include"]
        source = f"{ROOT}/benches/programs/{name}.c"
        subprocess.run(["cc", *options, *includes, "-o", program, source], check=True)
        return program

    def start(self, options, command, environment=None):
        """Starts `command` under `holdfast run OPTIONS` and returns the job."""
        self.count += 1
        job = Job(self, f"bench{self.count}", options, command, environment or {})
        self.jobs.append(job)
        job.prefer()
        return job

    def holdfast(self, *words, patience=600):
        """Runs a holdfast command and returns its standard output."""
        done = subprocess.run(
            [HOLDFAST, *words], env=self.environment, cwd=self.work, text=True, capture_output=True, timeout=patience
        )
        if done.returncode != 0:
            raise Trouble(f"holdfast {' '.join(words)}: {done.stderr.strip() or done.returncode}")
        return done.stdout


class Job:
    """A program under `holdfast run`: its lines go to a file and are read from there, commands go to its pipe."""

    def __init__(self, bench, name, options, command, environment):
        self.bench, self.name = bench, name
        self.output = os.path.join(bench.work, f"{name}.out")
        self.errors = os.path.join(bench.work, f"{name}.err")
        self.offset = 0
        with open(self.output, "wb") as out, open(self.errors, "wb") as errors:
            self.front = subprocess.Popen(
                [HOLDFAST, "run", "--name", name, *options, "--", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                cwd=bench.work,
                env=dict(bench.environment, **environment),
            )

    def prefer(self):
        """Gives program and agent the priority that NICE asks for."""
        nice = os.environ.get("NICE")
        while nice and self.front.poll() is None:
            status = self.status()
            agent, pid = status.get("agent_pid"), status.get("pid")
            if agent and pid:
                for process in (os.getpid(), agent, pid):
                    os.setpriority(os.PRIO_PROCESS, process, int(nice))
                    with open(f"/proc/{process}/autogroup", "w") as group:
                        group.write(nice)
                return
            time.sleep(0.002)

    def wait_line(self, start, patience=900):
        """The next line of output that begins with `start`."""
        deadline = time.monotonic() + patience
        while True:
            with open(self.output, "rb") as out:
                out.seek(self.offset)
                for line in out:
                    if not line.endswith(b"\n"):
                        break
                    self.offset += len(line)
                    if line.decode(errors="replace").lstrip().startswith(start):
                        return line.decode().strip()
            if self.front.poll() is not None or time.monotonic() > deadline:
                raise Trouble(f"no line {start!r} from {self.name}: {self.last_words()}")
            time.sleep(0.002)

    def last_words(self):
        """The end of what it, and its agent, said."""
        log = os.path.join(self.bench.store, self.name, "agent.log")
        texts = []
        for path in (self.output, self.errors, log):
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    texts += file.read().splitlines()[-3:]
        return " | ".join(texts)

    def say(self, line):
        """One line to its standard input, and its answer `done`."""
        self.front.stdin.write(line.encode() + b"\n")
        self.front.stdin.flush()
        return self.wait_line("done")

    def ask(self, line):
        """One line to its standard input, and the line that begins with the same word."""
        self.front.stdin.write(line.encode() + b"\n")
        self.front.stdin.flush()
        return self.wait_line(line.split()[0])

    def finish(self, patience=3600):
        """Waits for its end and returns its lines."""
        if self.front.stdin:
            self.front.stdin.close()
        status = self.front.wait(patience)
        if status != 0:
            raise Trouble(f"{self.name} ended with {status}: {self.last_words()}")
        with open(self.output, errors="replace") as out:
            return out.read().splitlines()

    def checkpoint(self, *options):
        """`holdfast checkpoint`; returns what `show` says of the new image, if it waits for the commit."""
        try:
            self.bench.holdfast("checkpoint", *options, self.name)
        except Trouble as trouble:
            raise Trouble(f"{trouble}; {self.last_words()}") from None
        return None if "--no-wait" in options else self.show()

    def show(self, number=None):
        """What `holdfast show --json` says of an image; the newest one without a number."""
        which = self.name if number is None else f"{self.name}@{number}"
        return json.loads(self.bench.holdfast("show", which, "--json"))

    def show_after(self, number, patience=600):
        """The same of the newest image once it is newer than that one: for who did not wait for its commit."""
        deadline = time.monotonic() + patience
        while True:
            shown = self.show()
            if shown["image"]["epoch"] > number:
                return shown
            if time.monotonic() > deadline:
                raise Trouble(f"{self.name}: no image after {number}: {self.last_words()}")
            time.sleep(0.02)

    def images(self):
        """All images that there are, oldest first."""
        newest = self.show()["image"]["epoch"]
        found = []
        for number in range(1, newest + 1):
            try:
                found.append(self.show(number))
            except Trouble:
                pass  # deleted by --keep, or failed
        return found

    def status(self):
        """The job's entry in `holdfast list --json`."""
        listed = json.loads(self.bench.holdfast("list", "--json"))
        return next((job for job in listed["jobs"] if job["job"] == self.name), {})

    def wait_end(self, patience=600):
        """Waits until the agent has ended: it finishes the flush that was under way when the program ended."""
        deadline = time.monotonic() + patience
        while self.status().get("agent_pid") is not None:
            if time.monotonic() > deadline:
                raise Trouble(f"{self.name}: the agent does not end")
            time.sleep(0.02)

    def kill(self):
        """Ends program and front, if they still run."""
        if self.front.poll() is None:
            pid = None
            try:
                pid = self.status().get("pid")
            except (Trouble, subprocess.TimeoutExpired, OSError):
                pass
            try:
                if pid:
                    os.kill(pid, signal.SIGKILL)
                self.front.wait(5)
            except (subprocess.TimeoutExpired, ProcessLookupError):
                self.front.kill()
                self.front.wait()

    def remove(self):
        """Ends it and deletes its images."""
        self.kill()
        time.sleep(0.1)  # the agent ends after the program
        shutil.rmtree(os.path.join(self.bench.store, self.name), ignore_errors=True)
        for path in (self.output, self.errors):
            if os.path.exists(path):
                os.unlink(path)


def median(values):
    """Median, or NaN of nothing."""
    values = list(values)
    return statistics.median(values) if values else float("nan")


def dig(value, path, otherwise=0):
    """A value of nested dictionaries: dig(shown, "epoch.flush.wait")."""
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return otherwise
        value = value[key]
    return value


def table(head, rows):
    """A Markdown table with aligned columns."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    line = lambda row: "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
    rule = "| " + " | ".join("-" * max(3, width) for width in widths) + " |"
    print("\n".join([line(cells[0]), rule, *map(line, cells[1:])]), flush=True)


def note(text):
    """A line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def numbers(name, otherwise, kind=float):
    """A list from an environment variable: `RATIOS="0.5 1"`."""
    return [kind(word) for word in os.environ.get(name, otherwise).replace(",", " ").split()]


class LoadWatch:
    """The highest load average while it was measured: well above 2 or so, somebody else was there."""

    def __init__(self):
        self.most = 0.0
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while True:
            self.most = max(self.most, os.getloadavg()[0])
            time.sleep(5)


def machine(bench, load):
    """One line about the machine, for the end of every listing."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) // MIB
    kind = subprocess.run(["df", "--output=fstype", bench.work], capture_output=True, text=True).stdout.split()[-1]
    return (
        f"{time.strftime('%Y-%m-%d')}: {model}, {len(os.sched_getaffinity(0))} cores, {memory} GiB, "
        f"Linux {os.uname().release}, store on {kind}; highest load average {load.most:.1f}"
    )
