"""How fast a gang protects its images and rebuilds them, beside SCR's redset in the same groups; `make bench-scr`.

redset is the part of SCR (github.com/LLNL/scr) that encodes and rebuilds. SCR names a folder with three repositories of
github.com/ECP-VeloC beside each other: `for r in redset KVTree rankstr; do git clone https://github.com/ECP-VeloC/$r;
done`. They are compiled here with -O3 and Open MPI (libopenmpi-dev, zlib1g-dev); nothing is installed. As root: hosts
are network namespaces with a folder in /dev/shm as their disk, as in protect.py, whose gangs these are.

One rank of redset, or one member of a gang, on each host, with MIB of noise: a file of redset's, memory and so an image
of ours. Both by turns, ROUNDS times: ENCODES encodings, then as many hosts as are covered lose all, and are rebuilt.
The time is that of the slowest host: of redset_apply and redset_recover, and from the commit to the last member's
parity, from the meeting to the last file. redset's ranks are not to poll (mpi_yield_when_idle), as there are fewer
processors than ranks; YIELD=0 lets them.

Environment: SCR, and optionally MIB=64, PROTECT="xor=4 rs=2+2", RATES="0 1000" (Mbit/s of each link, both ways; 0:
without a bound), ROUNDS=5, ENCODES=2, YIELD=1. Run it on a machine that does nothing else, or under `chrt -r 1`: all
of both has real-time priority then.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("MIB", "64")
import kit
import protect

SCR = os.environ.get("SCR", "")
PROTECT = os.environ.get("PROTECT", "xor=4 rs=2+2").split()
RATES = list(map(int, os.environ.get("RATES", "0 1000").split()))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
ENCODES = int(os.environ.get("ENCODES", "2"))
YIELD = os.environ.get("YIELD", "1")
REDSET = "err_mpi util util_mpi io lofi - single partner xor reedsolomon reedsolomon_common".split()
KVTREE = "- util io helpers err mpi mpi_io".split()
# redset's and KVTree's builds write them; these are what they find on Linux.
CONFIG = "#define HAVE_BYTESWAP_H 1\n#define KVTREE_FILE_LOCK_USE_FLOCK 1\n"
# What mpirun takes for ssh.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=${1##*.}
shift
exec %s/at %s $((host - 1)) sh -c "$*"
"""


def compile_redset(bench):
    """The driver with redset's sources."""
    program = os.path.join(bench.work, "redset")
    with open(os.path.join(bench.work, "config.h"), "w", encoding="utf-8") as file:
        file.write(CONFIG)
    of = lambda folder, parts: [
        os.path.join(SCR, folder, "src", folder.lower() + ("" if part == "-" else f"_{part}") + ".c") for part in parts]
    sources = [*of("redset", REDSET), *of("KVTree", KVTREE), *of("rankstr", ["mpi"])]
    folders = [bench.work, *(os.path.join(SCR, name, "src") for name in ("redset", "KVTree", "rankstr"))]
    words = [*(f"-I{folder}" for folder in folders), f"-I{kit.ROOT}/tests/programs", "-DREDSET_ENABLE_MPI"]
    driver = f"{kit.ROOT}/benches/programs/redset.c"
    subprocess.run(["mpicc.openmpi", "-O3", "-w", *words, "-o", program, driver, *sources, "-lz"], check=True)
    return program


def of_redset(bench, hosts, program, kind):
    """Seconds of encodings and of the rebuild."""
    count, losses = protect.members_of(kind)
    disk = tempfile.mkdtemp(prefix="holdfast-bench-", dir="/dev/shm")
    for member in range(count):
        os.mkdir(os.path.join(disk, str(member)))
    agent = os.path.join(bench.work, "agent")
    with open(agent, "w", encoding="utf-8") as file:
        file.write(AGENT % (protect.HOSTS, hosts.name))
    os.chmod(agent, 0o755)
    parameters = {"plm_rsh_agent": agent, "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "eth0",
                  "oob_tcp_if_include": "eth0", "mpi_yield_when_idle": YIELD}
    words = ["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none"]
    words += [word for name, value in parameters.items() for word in ("--mca", name, value)]
    words += ["--host", ",".join(f"10.77.0.{host + 1}" for host in range(count)), "-np", str(count)]
    words += [program, disk, kind.partition("=")[0], str(losses), str(protect.MIB), str(ENCODES)]
    try:
        done = subprocess.run(hosts.words(0, words), text=True, capture_output=True, timeout=protect.PATIENCE_S)
    finally:
        shutil.rmtree(disk)
    times = [line.split() for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(times) != ENCODES + 1:
        raise kit.Trouble(f"redset: {done.stdout} {done.stderr}")
    return [float(seconds) for what, seconds in times if what == "encode"], float(times[-1][1])


def of_gang(bench, hosts, program, kind):
    """The same, and the bytes of a member."""
    _, losses = protect.members_of(kind)
    gang = protect.Gang(bench, hosts, kind, [program, str(protect.MIB), "plain"])
    try:
        encodes = []
        for _ in range(ENCODES):
            gang.say(b"all\n")
            time.sleep(0.5)
            seconds, stream = gang.encoded(gang.checkpoint())
            encodes.append(seconds)
        return encodes, gang.rebuilt(list(range(1, 1 + losses))), stream
    finally:
        gang.end()


def rows(bench, programs, kind, rate):
    """Two: encode and rebuild."""
    hosts = protect.Hosts(protect.members_of(kind)[0], rate)
    theirs, ours = [], []
    try:
        net = protect.link_rate(hosts, rate)
        for _ in range(ROUNDS):
            theirs.append(of_redset(bench, hosts, programs["redset"], kind))
            ours.append(of_gang(bench, hosts, programs["dirtier"], kind))
            kit.note(f"{kind} {rate}: {theirs[-1]} {ours[-1]}, load {os.getloadavg()[0]:.1f}")
    finally:
        hosts.down()
    bytes_of = (protect.MIB << 20, ours[0][2])
    encode = [[statistics.median(one[0]) for one in side] for side in (theirs, ours)]
    rebuild = [[one[1] for one in side] for side in (theirs, ours)]
    shown = []
    for what, times in (("encode", encode), ("rebuild", rebuild)):
        speeds = [bytes_of[side] / statistics.median(times[side]) / 1e6 for side in (0, 1)]
        ratios = [bytes_of[1] / two / (bytes_of[0] / one) for one, two in zip(*times)]
        range_of = lambda values: f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        shown.append([kind, what, f"{rate} Mbit/s" if rate else "-", f"{net / 1e6:.0f}", range_of(times[0]),
                      f"{speeds[0]:.0f}", range_of(times[1]), f"{speeds[1]:.0f}",
                      f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"])
    return shown


def main():
    if os.geteuid() != 0:
        sys.exit("bench-scr makes network namespaces: run it as root")
    if not os.path.exists(os.path.join(SCR, "redset/src/redset.h")):
        sys.exit("bench-scr: SCR=FOLDER with the sources of redset, KVTree and rankstr: see the head of benches/scr.py")
    bench, load = kit.Bench(), kit.LoadWatch()
    programs = {"redset": compile_redset(bench), "dirtier": bench.compile("dirtier")}
    shown = []
    for kind in PROTECT:
        for rate in RATES:
            try:
                shown += rows(bench, programs, kind, rate)
            except kit.Trouble as trouble:
                kit.note(f"{kind} {rate}: {trouble}")
    print(f"## --protect beside SCR's redset, {protect.MIB} MiB on each host, {ROUNDS} rounds\n")
    kit.table(["--protect", "what", "links", "TCP MB/s", "redset s", "MB/s", "ours s", "MB/s", "ours / redset"], shown)
    print(f"\nratios of rates, round by round: median (least to most). {kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
