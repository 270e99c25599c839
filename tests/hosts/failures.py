#!/usr/bin/python3
"""A clock that kills: a stencil code of MPI under --restart-on-failure, and failures at random while it runs.

    failures.py HOLDFAST [--mtbf SECONDS] [--minutes M] [--kills N] [--seed S] [--every T|auto] [--kinds K,...] [--keep]

HOLDFAST: folder with the binary and the library. Hosts are network namespaces (`up` beside it). The code takes so many
minutes alone: it waits after each step, so that its time says little of how busy the machine is. Beside it runs the
same code without Holdfast, on hosts of its own. When it has an image, and a minute after it was started, failures
begin, with exponential times between them:

* rank, agent (of a member), leader (its agent), front: kill -9; any: of any process on any host of the job;
* host: its link is down, all its processes are killed, and after some seconds it is there again, empty;
* link: down for some seconds, now and then for longer than a host may be silent.

The command itself is not killed: what it dies of is not survived. There are no more than five failures since the
newest image: after eight in a row a job gives up. What must hold: the code ends with 0, and has said what it says
without failures; exit 1 if not. At the end: failures by kind, restarts, the time beside that of the run without
failures, and what `holdfast plan` says of it. Called by `make hosts-failures` in a short form, as root.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

import programs

KINDS = ("rank", "agent", "leader", "front", "any", "host", "link")
RANK = "stencil-openmpi"
JOB = "g.0"
FIRST = "10.77.0."
# A host that is silent for longer is lost.
SILENT = 30.0
LOOK = 0.05
# Failures since the newest image: a job gives up after eight in a row.
MOST = 5
# Ports at which the code had connections before its first image are free again after this time (TIME_WAIT).
SETTLING = 65.0


class Stencil(programs.Run):
    """The code on hosts of its own: on the first ones, the others are spare."""

    def __init__(self, given, holdfast):
        hosts, pause = given.hosts, given.pause
        steps = round(given.minutes * 60 / (pause / 1e6 + given.step))
        if given.untimed and not holdfast:
            pause = 1
        line = f"./stencil-openmpi {steps // 20 * 20} {given.width} {pause}"
        code = programs.mpi(f"{programs.OPEN_MPI}", given.ranks, hosts, line, ["mpicc.openmpi"])
        programs.PROGRAMS["failures"] = code
        super().__init__("failures", given.user, holdfast)
        self.given = given

    def start(self):
        if not self.holdfast:
            return super().start()
        given = self.given
        spares = ",".join(f"{FIRST}{host + 1}" for host in range(self.count, 2 * self.count))
        every = ["--every", given.every]
        if given.every == "auto":
            every += ["--mtbf", f"{given.mtbf:.0f}s"]
        words = [f"{self.holdfast}/holdfast", "run", "--name", programs.GANG, "--gang", "ssh", *every,
                 "--restart-on-failure", "100000", "--spare", spares, "--", "/bin/sh", "-c",
                 self.program["members"][0]]
        self.begin(0, words, "out0")

    def record(self, name):
        """A file of the job of the leader's host, or nothing."""
        try:
            return json.loads((self.folder / "store" / JOB / name).read_text())
        except (OSError, ValueError):
            return {}

    def newest(self):
        """Number of the newest image of the gang."""
        images = (self.folder / "store" / ".gangs" / programs.GANG).glob("gang-*")
        numbers = [int(image.name[5:]) for image in images if image.name[5:].isdecimal()]
        return max(numbers, default=None)

    def processes(self):
        """By host: the processes there and their words."""
        found = {}
        for host in range(2 * self.count):
            told = subprocess.run(["ip", "netns", "pids", f"{self.name}-{host}"], capture_output=True, text=True,
                                  check=False).stdout.split()
            found[host] = {int(pid): words_of(pid) for pid in told}
        return found


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def is_agent(words):
    return "__agent" in words


def is_front(words):
    return any(word.endswith("holdfast") for word in words[:1]) and not is_agent(words) and (
        "run" in words or "restart" in words) and "__rsh-server" not in words[:2]


class Clock:
    """Failures, one after the other. `next`: when the next one is due."""

    def __init__(self, run, given):
        self.run, self.given, self.lots = run, given, random.Random(given.seed)
        self.kinds = given.kinds.split(",")
        self.counts = collections.Counter()
        # Failures since the newest image.
        self.newest, self.of_newest = None, 0
        self.log = []
        # Hosts whose link is down, and until when; whether the last link is down for long.
        self.down, self.is_long = {}, False
        self.begun = time.monotonic()
        self.next = self.begun + self.lots.expovariate(1 / given.mtbf)

    def tick(self):
        """Whether there was a failure, of a kind that is one for the job."""
        now = time.monotonic()
        for host in [host for host, end in self.down.items() if end <= now]:
            self.join(host)
        if now < self.next or sum(self.counts.values()) >= self.given.kills:
            return False
        if self.is_last_try():
            self.next = now + 1.0
            return False
        self.next = now + self.lots.expovariate(1 / self.given.mtbf)
        for kind in self.lots.sample(self.kinds, len(self.kinds)):
            what = self.fail(kind)
            if what:
                self.counts[kind] += 1
                self.of_newest += 1
                self.say(f"{kind}: {what}")
                return kind != "link" or self.is_long
        return False

    def say(self, text):
        line = f"{time.time():.2f} {text}"
        self.log.append(line)
        if self.given.verbose:
            print(f"  {line}", flush=True)

    def is_last_try(self):
        """Whether one more failure could be one too many in a row from one image."""
        newest = self.run.newest()
        if newest != self.newest:
            self.newest, self.of_newest = newest, 0
        return self.of_newest >= MOST

    def fail(self, kind):
        """Has something fail; what, or nothing if there is no such thing now."""
        all_of = self.run.processes()
        all_of[0].pop(self.run.fronts[0].pid, None)
        if kind in ("host", "link"):
            used = [host for host, found in all_of.items() if host and found and host not in self.down]
            return getattr(self, kind)(self.lots.choice(used)) if used else None
        wanted = {"rank": lambda words: words[:1] == [f"./{RANK}"], "agent": is_agent, "leader": is_agent,
                  "front": is_front, "any": bool}[kind]
        hosts = [0] if kind == "leader" else list(all_of)
        pids = [(host, pid, words) for host in hosts for pid, words in sorted(all_of[host].items()) if wanted(words)]
        if not pids:
            return None
        host, pid, words = self.lots.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return f"{pid} on h{host}: {' '.join(words)[:80]}"

    def host(self, host):
        seconds = self.cut(host, self.lots.uniform(1.0, 20.0))
        namespace = f"{self.run.name}-{host}"
        end = time.monotonic() + programs.PATIENCE
        while time.monotonic() < end:
            pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True,
                                  check=False).stdout.split()
            if not pids:
                return f"h{host}, there again after {seconds:.0f} s"
            subprocess.run(["kill", "-9", *pids], stderr=subprocess.DEVNULL, check=False)
            time.sleep(0.01)
        raise programs.Failed(f"h{host} does not go")

    def link(self, host):
        self.is_long = self.lots.random() < self.given.long
        least, most = (SILENT, SILENT + 15) if self.is_long else (1.0, 10.0)
        seconds = self.cut(host, self.lots.uniform(least, most))
        return f"h{host} for {seconds:.0f} s"

    def cut(self, host, seconds):
        """From now on nothing reaches a host."""
        pathlib.Path(f"{self.run.socket}.{host}").touch()
        self.set_link(host, "down")
        self.down[host] = time.monotonic() + seconds
        return seconds

    def join(self, host):
        self.down.pop(host)
        self.set_link(host, "up")
        pathlib.Path(f"{self.run.socket}.{host}").unlink()
        self.say(f"h{host} is there again")

    def set_link(self, host, state):
        command = ["ip", "-n", f"{self.run.name}-net", "link", "set", f"to{host}", state]
        subprocess.run(command, check=True)


class Watch:
    """When the program ran again after a failure: seconds."""

    def __init__(self, run, clock):
        self.run, self.clock = run, clock
        self.started = run.record("run.json").get("started_ns", 0)
        self.since, self.times = None, []

    def failed(self):
        if self.since is None:
            self.since = time.time()

    def look(self):
        started = self.run.record("run.json").get("started_ns", 0)
        if started <= self.started:
            return
        self.started = started
        if self.since is not None:
            self.times.append(started / 1e9 - self.since)
            self.clock.say(f"it runs again, {self.times[-1]:.2f} s after the failure")
        self.since = None


def followed(run, plain, given):
    """The run with failures: its clock, the times of its restarts, and how long both took."""
    begun = time.monotonic()
    run.start()
    plain.start()
    run.until("a first line", lambda: run.is_over() or run.output()[0])
    refused = []
    if not run.checkpoint(refused):
        raise programs.Failed(f"no first image: {refused}")
    while time.monotonic() < begun + SETTLING:
        time.sleep(1.0)
    clock = Clock(run, given)
    watch = Watch(run, clock)
    end = begun + given.minutes * 60 * 5 + 600
    plain_s = None
    while not run.is_over():
        if clock.tick():
            watch.failed()
        watch.look()
        if plain_s is None and plain.is_over():
            plain_s = time.monotonic() - begun
        if time.monotonic() > end:
            raise programs.Failed("it does not end")
        time.sleep(LOOK)
    taken = time.monotonic() - begun
    if run.fronts[0].poll() != 0:
        raise programs.Failed(f"exit status {run.fronts[0].poll()}")
    plain.wait()
    return clock, watch, taken, plain_s or time.monotonic() - begun


def told_by_plan(run, watch, taken, given):
    """What `holdfast plan` says of the job, with the failures that there were."""
    restarts = len(run.record("restarts.json") or [])
    if not restarts or not watch.times:
        return "no restart: nothing to compare"
    level = f"local,restart={max(statistics.mean(watch.times), 0.001):.3f}s,mtbf={taken / restarts:.3f}s"
    words = ["plan", "--from", JOB, "--level", level, "--json"]
    if given.every != "auto":
        words += ["--every", given.every]
    told = run.ask(*words)
    if told.returncode != 0:
        return f"holdfast plan: {told.stderr.strip()}"
    told = json.loads(told.stdout)
    best = f"its own every {told['interval_ms'] / 1e3:.1f} s: {told['efficiency_ppm'] / 1e4:.1f} %"
    every = told.get("every") or {}
    every = f"every {given.every}: {(every.get('efficiency_ppm') or 0) / 1e4:.1f} %" if every else "every auto"
    cost = told["levels"][0]
    return (f"plan: {best}; {every}; stop {cost['cost_ms']} ms, flush {cost['flush_ms']} ms, failures that cost a "
            f"restart every {taken / restarts:.1f} s")


def report(run, plain, given):
    clock, watch, taken, plain_s = followed(run, plain, given)
    if run.output() != plain.output():
        raise programs.Failed(f"other output: {run.output()[0][-300:]!r}, not {plain.output()[0][-300:]!r}")
    kinds = ", ".join(f"{kind} {clock.counts[kind]}" for kind in KINDS if clock.counts[kind])
    restarts = run.record("restarts.json") or []
    took = watch.times or [0.0]
    print(f"right   seed {given.seed}: {sum(clock.counts.values())} failures ({kinds}), {len(restarts)} restarts, "
          f"newest image {run.newest()}")
    beside = (f", {plain_s:.0f} s without failures: overhead {100 * (taken / plain_s - 1):.1f} %, efficiency "
              f"{100 * plain_s / taken:.1f} %")
    beside = "" if given.untimed else beside
    print(f"        {taken:.0f} s{beside}; from failure to run: mean {statistics.mean(took):.2f} s, median "
          f"{statistics.median(took):.2f} s, longest {max(took):.2f} s")
    print(f"        {told_by_plan(run, watch, taken, given)}", flush=True)


def parsed():
    made = argparse.ArgumentParser()
    made.add_argument("holdfast")
    made.add_argument("--mtbf", type=float, default=60.0, help="seconds")
    made.add_argument("--minutes", type=float, default=20.0, help="how long the code takes alone, about")
    made.add_argument("--kills", type=int, default=1 << 30, help="no more failures than that")
    made.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    made.add_argument("--every", default="auto", metavar="T|auto")
    made.add_argument("--kinds", default=",".join(KINDS), help="of: " + ", ".join(KINDS))
    made.add_argument("--long", type=float, default=0.1, help="share of links that are down for over 30 s")
    made.add_argument("--hosts", type=int, default=2, help="of the code; as many are spare")
    made.add_argument("--ranks", type=int, default=4)
    made.add_argument("--width", type=int, default=512, help="of the plate")
    made.add_argument("--pause", type=int, default=10000, help="after each step: microseconds")
    made.add_argument("--step", type=float, default=0.0005, help="what a step takes beside: seconds")
    made.add_argument("--untimed", action="store_true", help="the code without Holdfast does not wait: less load")
    made.add_argument("--user", choices=("root", "user"), default="root")
    made.add_argument("--keep", action="store_true", help="keep the folder if it fails")
    made.add_argument("--verbose", action="store_true", help="each failure when it comes")
    return made.parse_args()


def main():
    given = parsed()
    if not all(kind in KINDS for kind in given.kinds.split(",")):
        sys.exit(f"--kinds: of {', '.join(KINDS)}")
    random.seed()
    print(f"seed {given.seed}, every {given.every}, a failure every {given.mtbf:.0f} s", flush=True)
    run, plain, is_right = Stencil(given, given.holdfast), Stencil(given, ""), False
    try:
        report(run, plain, given)
        is_right = True
    except programs.Failed as why:
        print(f"WRONG   seed {given.seed}: {why}\n{run.said()}\nwithout Holdfast:\n{plain.said()}", flush=True)
    finally:
        run.close(given.keep and not is_right)
        plain.close(False)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
