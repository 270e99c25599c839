"""What a gang adds to a stop, and what its leader does for each member; `make bench-gang`.

Measures and prints tables, beside the targets of the project. Members are jobs of one process that does nothing
(programs/idlers.c), so that nothing is dirty: what is left is the stop itself and the meetings inside it. A gang on one
host talks over its loopback device; as root, also one on two hosts, which are network namespaces (tests/hosts).

  stop    of one job, and of each member of a gang of 2, in turn, and what a gang adds to it
  trip    a byte there and back by TCP between the same two hosts, measured in the same run
  leader  processor time of the leader's agent in one checkpoint, for each member, by size of the gang

Environment, all optional: RUNS=40, SIZES="2 16 64" (all members on this host). Run it on a machine that does nothing
else.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import kit

RUNS = int(os.environ.get("RUNS", "40"))
SIZES = list(map(int, os.environ.get("SIZES", "2 16 64").split()))
HOSTS = os.path.join(kit.ROOT, "tests/hosts")
PATIENCE_S = 120
#: Asked for: two round trips and so many milliseconds more; microseconds of the leader for each member.
ASKED_MS, ASKED_US = 3, 50


class Gang:
    """Members of one gang, each under a `holdfast run`; `hosts`: the name of what tests/hosts/up has made."""

    def __init__(self, bench, program, members, hosts=None):
        bench.count += 1
        self.bench, self.name, self.members, self.hosts = bench, f"gang{bench.count}", members, hosts
        self.errors = os.path.join(bench.work, f"{self.name}.err")
        self.fronts = []
        with open(self.errors, "wb") as errors:
            for member in range(members):
                words = ["run", "--name", self.name, "--gang", f"{member}/{members}", "--keep", "3"]
                command = self.there(member, [kit.HOLDFAST, *words, "--", program, "1", "1"])
                self.fronts.append(subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, cwd=bench.work,
                    env=bench.environment,
                ))

    def there(self, member, words):
        return [f"{HOSTS}/at", self.hosts, str(member), *words] if self.hosts else words

    def holdfast(self, *words):
        command = self.there(0, [kit.HOLDFAST, *words])
        done = subprocess.run(command, env=self.bench.environment, cwd=self.bench.work, text=True, capture_output=True)
        if done.returncode != 0:
            raise kit.Trouble(f"holdfast {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def wait_live(self):
        """Waits until all programs run, and are not young any more; the leader's agent."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            jobs = {job["job"]: job for job in json.loads(self.bench.holdfast("list", "--json"))["jobs"]}
            own = [jobs.get(f"{self.name}.{member}", {}) for member in range(self.members)]
            if all(job.get("pid") and job.get("agent_pid") for job in own):
                time.sleep(2.5)  # of processes that have just been made more is read inside the stop
                return own[0]["agent_pid"]
            time.sleep(0.05)
        with open(self.errors, encoding="utf-8") as errors:
            raise kit.Trouble(f"{self.name} does not run: {errors.read()}")

    def checkpoint(self):
        """One image; the stops of its members, ms."""
        image = json.loads(self.holdfast("checkpoint", "--json", self.name))
        shown = (self.bench.holdfast("show", f"{self.name}.{one['member']}@{one['epoch']}", "--json")
                 for one in image["members"])
        return [kit.dig(json.loads(text), "stop.total_ns") / 1e6 for text in shown]

    def end(self):
        for front in self.fronts:
            front.stdin.close()
        for front in self.fronts:
            try:
                front.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                front.kill()


class Hosts:
    """Two hosts that are network namespaces."""

    def __init__(self):
        self.name = f"bench{os.getpid()}"
        subprocess.run([f"{HOSTS}/up", self.name, "2"], check=True)

    def at(self, host, words, **options):
        return subprocess.Popen([f"{HOSTS}/at", self.name, str(host), *words], text=True, **options)

    def down(self):
        subprocess.run([f"{HOSTS}/down", self.name], check=False)


ECHO = """
import socket
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
there = server.accept()[0]
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while (byte := there.recv(1)):
    there.sendall(byte)
"""
ASK = """
import socket, statistics, sys, time
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(2000):
    begun = time.monotonic()
    there.sendall(b"x")
    there.recv(1)
    times.append((time.monotonic() - begun) * 1000)
print(statistics.median(times))
"""


def round_trip(hosts):
    """A byte there and back, ms."""
    python = [sys.executable, "-c"]
    if hosts is None:
        echo = subprocess.Popen([*python, ECHO], stdout=subprocess.PIPE, text=True)
        ask = lambda port: subprocess.Popen([*python, ASK, "127.0.0.1", port], stdout=subprocess.PIPE, text=True)
    else:
        echo = hosts.at(0, [*python, ECHO], stdout=subprocess.PIPE)
        ask = lambda port: hosts.at(1, [*python, ASK, "10.77.0.1", port], stdout=subprocess.PIPE)
    asking = ask(echo.stdout.readline().strip())
    taken = float(asking.communicate()[0])
    echo.wait()
    return taken


def stops(bench, program, hosts):
    """A row: one job and a gang of two beside each other, in turn."""
    job = bench.start(["--keep", "3"], [program, "1", "1"])
    gang = Gang(bench, program, 2, hosts and hosts.name)
    try:
        job.wait_line("ready")
        gang.wait_live()
        job.checkpoint(), gang.checkpoint()
        alone, leader, other = [], [], []
        for _ in range(RUNS):
            alone.append(kit.dig(job.checkpoint(), "stop.total_ns") / 1e6)
            both = gang.checkpoint()
            leader.append(both[0])
            other.append(both[1])
    finally:
        job.remove()
        gang.end()
    trip = round_trip(hosts)
    more = [statistics.median(stop) - statistics.median(alone) for stop in (leader, other)]
    target = 2 * trip + ASKED_MS
    verdict = "met" if max(more) <= target else "**missed**"
    shown = [alone, leader, other]
    return ["2 hosts" if hosts else "1 host", *(f"{statistics.median(one):.2f}" for one in shown),
            f"{max(leader + other):.2f}", f"{trip:.3f}", *(f"{one:.2f}" for one in more), f"{target:.2f} {verdict}"]


def clock_of(pid):
    """The clock of a process's processor time (clock_getcpuclockid(3): its number is made so by the C library)."""
    return (~pid << 3) | 2


def used(agent, checkpoint):
    """Processor time of an agent in a checkpoint, s."""
    for _ in range(3):
        checkpoint()
    clock, count = clock_of(agent), max(RUNS // 2, 1)
    begun = time.clock_gettime(clock)
    for _ in range(count):
        checkpoint()
    return (time.clock_gettime(clock) - begun) / count


def leader(bench, program, members):
    """A row: the leader's agent, and that of one job on the same host: an agent looks at all of its processes."""
    job = bench.start(["--keep", "3"], [program, "1", "1"])
    gang = Gang(bench, program, members)
    try:
        job.wait_line("ready")
        agent = gang.wait_live()
        one = used(job.status()["agent_pid"], lambda: bench.holdfast("checkpoint", job.name))
        all_of_it = used(agent, lambda: gang.holdfast("checkpoint", gang.name))
    finally:
        job.remove()
        gang.end()
    each = (all_of_it - one) / (members - 1) * 1e6
    verdict = "met" if each <= ASKED_US else "**missed**"
    return [members, f"{one * 1e3:.2f}", f"{all_of_it * 1e3:.2f}", f"{each:.0f}", f"{ASKED_US} {verdict}"]


def main():
    bench, load = kit.Bench(), kit.LoadWatch()
    program = bench.compile("idlers")
    rows = [stops(bench, program, None)]
    if os.geteuid() == 0:
        hosts = Hosts()
        try:
            rows.append(stops(bench, program, hosts))
        finally:
            hosts.down()
    print(f"## Gangs\n\n### Stops, ms: medians of {RUNS}\n")
    kit.table(["gang of 2 on", "one job", "leader", "member 1", "most", "trip", "leader's more", "member's more",
               "asked of both"], rows)
    rows = [leader(bench, program, members) for members in SIZES]
    print(f"\n### Processor time of an agent in a checkpoint, ms ({RUNS // 2} each)\n")
    kit.table(["members", "one job beside them", "the leader", "us for each other member", "asked"], rows)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
