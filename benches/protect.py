"""How fast hosts of a gang make redundancy of each other's images, and rebuild what one has lost; `make bench-protect`.

Hosts are network namespaces of this machine (tests/hosts), each with a folder in /dev/shm as its disk; as root. Every
member has MIB of noise in its memory. Prints tables, beside what the model of the project's reference says (Sato 2014,
ch. 5: s/mem + (s + s/(n-1))/net + s/mem for n members with streams of s bytes; a rebuild takes s/net more). What is
asked for is 1.3 times that.

  encode   for each protection and rate of the links: from the commit to the last member's parity
  rebuild  the same gang after one host has lost all, or as many as are covered: from the meeting to the last file
  mem      memcpy on as many processors as there are hosts, at the same time, measured in the same run
  net      TCP from each host to the next one, all at the same time, as the links carry it, measured in the same run
  time     of a program that computes and writes memory, with a checkpoint every few seconds, with and without
           --protect: the same work by turns; once with all processors for the members, and once with them on half of
           them, so that the others are free. Beside it the processor time of all but the programs, and the least that
           encoding adds where no processor is idle: that time, spread over all processors

Environment, all optional: MIB=128 of each member, PROTECT="partner xor=4 rs=2+2 rs=4+2", RATES="0 1000" (Mbit/s of
each link, both ways; 0: without a bound), RUNS=3, SECONDS=40 and EVERY=10 of `time` (0: not measured) and
TIME="partner" of which protections. Run it on a machine that does nothing else, or under `chrt -r 1`, but for `time`.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import kit

MIB = int(os.environ.get("MIB", "128"))
PROTECT = os.environ.get("PROTECT", "partner xor=4 rs=2+2 rs=4+2").split()
RATES = list(map(int, os.environ.get("RATES", "0 1000").split()))
RUNS = int(os.environ.get("RUNS", "3"))
SECONDS = float(os.environ.get("SECONDS", "40"))
EVERY = float(os.environ.get("EVERY", "10"))
TIME = os.environ.get("TIME", "partner").split()
HOSTS = os.path.join(kit.ROOT, "tests/hosts")
PATIENCE_S = 300
NAME = "sim"


def members_of(protect):
    """How many members a group of it has, and how many may be lost."""
    if protect == "partner":
        return 2, 1
    kind, _, number = protect.partition("=")
    if kind == "xor":
        return int(number), 1
    data, _, parity = number.partition("+")
    return int(data) + int(parity), int(parity)


class Hosts:
    """Network namespaces whose links have a rate, Mbit/s, or none."""

    def __init__(self, count, rate):
        self.name, self.count = f"prot{os.getpid()}", count
        subprocess.run([f"{HOSTS}/up", self.name, str(count)], check=True)
        for host in range(count if rate else 0):
            self.bound(f"{self.name}-{host}", "eth0", rate)
            self.bound(f"{self.name}-net", f"to{host}", rate)

    def bound(self, namespace, device, rate):
        """What goes out of a device is bounded: of eth0 what a host sends, of the other end what it gets."""
        subprocess.run(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root",
                        "tbf", "rate", f"{rate}mbit", "burst", "1mb", "latency", "50ms"], check=True)

    def words(self, host, words):
        return [f"{HOSTS}/at", self.name, str(host), *words]

    def pids(self):
        """Of processes on the hosts; no command is started for that, as Holdfast looks at who starts what."""
        spaces = {os.stat(f"/run/netns/{self.name}-{host}").st_ino for host in range(self.count)}
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino in spaces:
                    found.append(pid)
            except OSError:
                pass  # it is gone
        return found

    def down(self):
        subprocess.run([f"{HOSTS}/down", self.name], check=False)


TAKE = """
import socket, time
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
there, buffer, total = server.accept()[0], bytearray(1 << 20), 0
begun = time.monotonic()
while (count := there.recv_into(buffer)):
    total += count
print(total / (time.monotonic() - begun), flush=True)
"""
GIVE = """
import socket, sys
there, left, piece = socket.create_connection((sys.argv[1], int(sys.argv[2]))), int(sys.argv[3]), bytes(1 << 20)
while left > 0:
    there.sendall(piece)
    left -= len(piece)
"""


def link_rate(hosts, rate):
    """Bytes a second from each host to the next one, all at the same time; the slowest."""
    python, each = [sys.executable, "-c"], (rate or 4000) * 125_000 * 2
    takers = [subprocess.Popen(hosts.words(host, [*python, TAKE]), stdout=subprocess.PIPE, text=True)
              for host in range(hosts.count)]
    ports = [taker.stdout.readline().strip() for taker in takers]
    givers = []
    for host in range(hosts.count):
        to = (host + 1) % hosts.count
        givers.append(subprocess.Popen(hosts.words(host, [*python, GIVE, f"10.77.0.{to + 1}", ports[to], str(each)])))
    rates = [float(taker.stdout.readline()) for taker in takers]
    for process in takers + givers:
        process.wait()
    return min(rates)


def copy_rate(program, count):
    """Bytes a second that each of so many processes copies, and adds by XOR, at the same time; the slowest."""
    all_of_them = [subprocess.Popen([program, "128"], stdout=subprocess.PIPE, text=True) for _ in range(count)]
    words = [one.communicate()[0].split() for one in all_of_them]
    return min(float(one[1]) for one in words) * 1e6, min(float(one[3]) for one in words) * 1e6


class Gang:
    """A gang with a member on each host."""

    def __init__(self, bench, hosts, protect, words, every=None):
        self.bench, self.hosts, self.protect = bench, hosts, protect
        self.disk = tempfile.mkdtemp(prefix="holdfast-bench-", dir="/dev/shm")
        self.folder = os.path.join(bench.work, f"gangs{bench.count}")
        bench.count += 1
        options = ["--gang-folder", self.folder, "--keep", "2"]
        options += ["--protect", protect] if protect else []
        options += ["--every", f"{every:g}s"] if every else []
        self.fronts = [self.begin(member, ["run", "--name", NAME, *self.place(member), *options, "--", *words])
                       for member in range(hosts.count)]
        for member in range(hosts.count):
            self.wait_line(member, "ready")

    def place(self, member):
        return ["--gang", f"{member}/{self.hosts.count}"]

    def store(self, member):
        return os.path.join(self.disk, str(member))

    def begin(self, member, words):
        environment = dict(self.bench.environment, HOLDFAST_STORE=self.store(member))
        with open(self.path(member, "out"), "ab") as out, open(self.path(member, "err"), "ab") as errors:
            return subprocess.Popen(self.hosts.words(member, [kit.HOLDFAST, *words]), env=environment,
                                    stdin=subprocess.PIPE, stdout=out, stderr=errors, cwd=self.bench.work)

    def path(self, member, kind):
        return os.path.join(self.disk, f"{member}.{kind}")

    def text(self, path):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def said(self):
        return "".join(self.text(self.path(member, "err")) for member in range(self.hosts.count))

    def until(self, what, found):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if (value := found()) is not None:
                return value
            time.sleep(0.02)
        raise kit.Trouble(f"{what}: not within {PATIENCE_S} s; {self.said()}")

    def wait_line(self, member, word):
        lines = lambda: self.text(self.path(member, "out")).splitlines()
        return self.until(f"{word} of member {member}",
                          lambda: next((line for line in lines() if line.startswith(word)), None))

    def say(self, line):
        for front in self.fronts:
            front.stdin.write(line)
            front.stdin.flush()

    def checkpoint(self):
        environment = dict(self.bench.environment, HOLDFAST_STORE=self.store(0))
        words = self.hosts.words(0, [kit.HOLDFAST, "checkpoint", NAME, "--json"])
        done = subprocess.run(words, env=environment, text=True, capture_output=True)
        if done.returncode != 0:
            raise kit.Trouble(done.stderr)
        return json.loads(done.stdout)["image"]

    def log(self, member):
        return self.text(os.path.join(self.store(member), f"{NAME}.{member}", "agent.log"))

    def encoded(self, image):
        """Seconds of the slowest member's parity, and the bytes of the longest stream."""
        record = os.path.join(self.folder, NAME, f"protected-{image:06}")
        self.until(f"protection of image {image}", lambda: os.path.exists(record) or None)
        pattern = re.compile(rf"image {image}: \d+ bytes of parity in ([0-9.]+)(ms|s|µs)")
        times = []
        for member in range(self.hosts.count):
            number, unit = pattern.findall(self.log(member))[-1]
            times.append(float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit])
        lens = []
        job = os.path.join(self.store(0), f"{NAME}.0")
        newest = sorted(name for name in os.listdir(job) if name.startswith("group-"))[-1]
        with open(os.path.join(job, newest), "rb") as file:
            group = json.loads(file.read().split(b"\n", 1)[1])
        for member in group["members"]:
            lens.append(sum(file["len"] for file in member["files"]))
        return max(times), max(lens)

    def overhead(self, program):
        """Seconds of processor time of all that runs on the hosts, but for this program."""
        ticks = 0
        for pid in self.hosts.pids():
            name, _, rest = self.text(f"/proc/{pid}/stat").rpartition(")")
            if rest and not name.endswith(f"({os.path.basename(program)}"):
                ticks += sum(map(int, rest.split()[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self):
        """Everything of it ends."""
        for pid in self.hosts.pids():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        for front in self.fronts:
            front.wait()

    def rebuilt(self, lost):
        """These hosts lose all, and all are restarted: seconds of the rebuild of the slowest."""
        self.kill()
        for member in lost:
            shutil.rmtree(self.store(member))
        for member in range(self.hosts.count):
            open(self.path(member, "err"), "w", encoding="utf-8").close()
        self.fronts = [self.begin(member, ["restart", NAME, *self.place(member), "--gang-folder", self.folder])
                       for member in range(self.hosts.count)]
        pattern = re.compile(r"were rebuilt of what other hosts have, in ([0-9.]+) s")
        found = self.until("rebuild", lambda: pattern.findall(self.text(self.path(0, "err"))) or None)
        return max(map(float, found))

    def end(self):
        self.kill()
        shutil.rmtree(self.disk, ignore_errors=True)


def row(bench, programs, protect, rate):
    """Two rows: encode and rebuild."""
    count, losses = members_of(protect)
    hosts = Hosts(count, rate)
    try:
        mem, _ = copy_rate(programs["copyrate"], count)
        net = link_rate(hosts, rate)
        gang = Gang(bench, hosts, protect, [programs["dirtier"], str(MIB), "plain"])
        try:
            times = []
            for _ in range(RUNS):
                gang.say(b"all\n")
                time.sleep(1)
                seconds, stream = gang.encoded(gang.checkpoint())
                times.append(seconds)
            again = gang.rebuilt(list(range(1, 1 + losses)))
        finally:
            gang.end()
    finally:
        hosts.down()
    # What each host takes from the others, once for each part of parity.
    carried = stream * losses
    model = 2 * stream / mem + (carried + carried / (count - losses)) / net
    taken = statistics.median(times)
    shown = "-" if not rate else f"{rate} Mbit/s"
    cells = lambda what, seconds, model: [
        protect, what, shown, f"{mem / 1e9:.2f}", f"{net / 1e6:.0f}", f"{stream / 1e6:.0f}", f"{seconds:.3f}",
        f"{stream / seconds / 1e6:.0f}", f"{model:.3f}",
        f"{seconds / model:.2f}" + ("" if seconds < 1.3 * model else " *")]
    return [cells("encode", taken, model), cells("rebuild", again, model + stream / net)]


def run_times(bench, programs, protect, hosts, pin, rounds):
    """Seconds of the slowest program, those of processor time beside it, images, and the rounds of each."""
    words = [*pin, programs["worker"], str(MIB), str(SECONDS), *([str(rounds)] if rounds else [])]
    gang = Gang(bench, hosts, protect, words, EVERY)
    try:
        begun = gang.overhead(programs["worker"])
        gang.say(b"\n")
        done = [gang.wait_line(member, "done").split() for member in range(hosts.count)]
        beside = gang.overhead(programs["worker"]) - begun
        names = os.listdir(os.path.join(gang.folder, NAME))
        images = max((int(name[5:]) for name in names if re.fullmatch(r"gang-\d+", name)), default=0)
        return max(float(line[1]) for line in done), beside, images, min(int(line[3]) for line in done)
    finally:
        gang.end()


def times(bench, programs, protect, is_pinned):
    """A row: the same work with and without, by turns."""
    all_of_them = sorted(os.sched_getaffinity(0))
    some = all_of_them[:max(1, len(all_of_them) // 2)] if is_pinned else all_of_them
    pin = ["taskset", "-c", ",".join(map(str, some))]
    hosts = Hosts(members_of(protect)[0], 0)
    pairs = []
    try:
        rounds = run_times(bench, programs, None, hosts, pin, None)[3]
        for _ in range(RUNS):
            pairs.append([run_times(bench, programs, kind, hosts, pin, rounds) for kind in (None, protect)])
            kit.note(f"{protect} on {len(some)}: {pairs[-1]}, load {os.getloadavg()[0]:.1f}")
    finally:
        hosts.down()
    plain, guarded = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
    more = [pair[1][0] / pair[0][0] - 1 for pair in pairs]
    processor = statistics.median(pair[1][1] - pair[0][1] for pair in pairs)
    images = statistics.median(pair[1][2] for pair in pairs)
    encoded = images * hosts.count * MIB * kit.MIB
    least = processor / len(all_of_them) / plain
    return [protect, f"{hosts.count} on {len(some)} of {len(all_of_them)}", f"{plain:.2f}", f"{guarded:.2f}",
            f"{statistics.median(more) * 100:.1f} % ({min(more) * 100:.1f} to {max(more) * 100:.1f})", f"{images:g}",
            f"{processor:.2f}", f"{processor / encoded * 1e9:.2f}", "-" if is_pinned else f"{least * 100:.1f} %"]


def main():
    if os.geteuid() != 0:
        sys.exit("bench-protect makes network namespaces: run it as root")
    bench, load = kit.Bench(), kit.LoadWatch()
    programs = {name: bench.compile(name) for name in ("copyrate", "dirtier", "worker")}
    copy, xor = copy_rate(programs["copyrate"], 1)
    print(f"## Redundancy between hosts\n\none processor: memcpy {copy / 1e9:.2f} GB/s, XOR {xor / 1e9:.2f} GB/s\n")
    rows = []
    for protect in PROTECT:
        for rate in RATES:
            try:
                rows += row(bench, programs, protect, rate)
            except kit.Trouble as trouble:
                kit.note(f"{protect} {rate}: {trouble}")
    head = ["--protect", "what", "links", "mem GB/s", "net MB/s", "stream MB", "s", "MB/s", "model s", "of it"]
    kit.table(head, rows)
    if SECONDS:
        print(f"\n### Run time of a program, {MIB} MiB written by each member, a checkpoint every {EVERY:g} s\n")
        kit.table(["--protect", "members, processors", "without, s", "with, s", "more, by turns", "images",
                   "processor s more", "s for each GB", "least"],
                  [times(bench, programs, protect, is_pinned) for protect in TIME for is_pinned in (False, True)])
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
