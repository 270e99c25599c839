#!/usr/bin/python3
"""Programs over hosts that we did not write: images at random moments, death of all hosts, restarts, the same output.

    programs.py HOLDFAST [--user root|user] [--rounds N] [--seed S] [--keep] [PROGRAM...]

HOLDFAST: folder with the binary and the library. Hosts are network namespaces (`up` beside it), twice as many as the
program needs.
In each round: two images at random moments, kill -9 of all processes of all hosts, and a restart, by turns on the same
hosts, on the others, which have other addresses, and on the others exchanged; in the last round, but for Open MPI, all
on one host with an address for each. At the end the output must be that of a run without Holdfast. A line for each
program and user; exit 1 if one is wrong. Called by `make hosts`, part of `make test-full`, as root; a program that is
not installed is SKIPPED.
"""
import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CODES = HERE / "programs"
MELT = HERE.parent / "apps" / "melt.lammps"
GANG = "g"
ORDINARY = 1000
PATIENCE = 180.0
OPEN_MPI = "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl_tcp_if_include eth0 --host"
# UCX would find that the hosts are one machine, and take shared memory.
MPICH = "env UCX_TLS=tcp,self mpirun.mpich -localhost 10.77.0.1 -hosts"


class Failed(Exception):
    """What went wrong, for people."""


def mpi(launcher, ranks, count, program, needs):
    """A program of MPI under --gang ssh. UCX 1.13 of Debian 12 hangs in MPI_Finalize now and then, between such hosts,
    in plain runs, too: the end of MPICH's programs is not waited for, but their last line."""
    each = ranks // count
    hosts = ",".join(f"10.77.0.{host + 1}:{each}" for host in range(count))
    line = f"TMPDIR=$PWD exec {launcher} {hosts} -np {ranks} {program}"
    last = b"step 2000: " if launcher == MPICH else None
    return {"hosts": count, "members": [line], "needs": needs, "ssh": True, "last": last,
            "apart": launcher == OPEN_MPI}


STENCIL = "./stencil-{0} 2000 512"
LAMMPS = "lmp -in melt.lammps -log none -screen none"
# The launcher of Debian's PyTorch 1.13 does not work with its Python 3.11: its variables are set here.
TORCH = ("GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=2 RANK={0} "
         "exec /usr/bin/python3 ddp.py 5000")
DASK = "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT=60s "
PROGRAMS = {
    "stencil, Open MPI, 4 ranks on 2": mpi(OPEN_MPI, 4, 2, STENCIL.format("openmpi"), ["mpicc.openmpi"]),
    "stencil, Open MPI, 8 ranks on 4": mpi(OPEN_MPI, 8, 4, STENCIL.format("openmpi"), ["mpicc.openmpi"]),
    "stencil, MPICH, 4 ranks on 2": mpi(MPICH, 4, 2, STENCIL.format("mpich"), ["mpicc.mpich"]),
    "stencil, MPICH, 8 ranks on 4": mpi(MPICH, 8, 4, STENCIL.format("mpich"), ["mpicc.mpich"]),
    "LAMMPS, Open MPI, 4 ranks on 2": mpi(OPEN_MPI, 4, 2, LAMMPS, ["mpicc.openmpi", "lmp"]),
    "LAMMPS, Open MPI, 8 ranks on 4": mpi(OPEN_MPI, 8, 4, LAMMPS, ["mpicc.openmpi", "lmp"]),
    "PyTorch DDP": {
        "hosts": 2, "members": [TORCH.format(0), TORCH.format(1)],
        "needs": ["/usr/lib/python3/dist-packages/torch"]},
    "Dask": {
        "hosts": 2, "needs": ["dask-worker"], "members": [
            f"{DASK} dask-scheduler --host 10.77.0.1 --port 8786 --no-dashboard 2>sched.err >&2 & "
            f"{DASK} dask-worker tcp://10.77.0.1:8786 --host 10.77.0.1 --nthreads 1 --no-dashboard 2>work0.err >&2 & "
            f"{DASK} /usr/bin/python3 sums.py 200 tcp://10.77.0.1:8786; wait",
            f"{DASK} exec dask-worker tcp://10.77.0.1:8786 --host 10.77.0.2 --nthreads 1 --no-dashboard "
            "2>work1.err >&2"]},
    "Redis and a replica": {
        "hosts": 2, "needs": ["redis-server"], "members": [
            "redis-server --bind 10.77.0.1 --protected-mode no --save '' --dir $PWD >redis0.out & "
            "sh redis.sh 1500 10.77.0.1 10.77.0.2; wait",
            "exec redis-server --bind 10.77.0.2 --protected-mode no --save '' --replicaof 10.77.0.1 6379 "
            "--dir $PWD/second >redis1.out"]},
}


def lower(user):
    """Before the words of a command of the user."""
    if user == "root":
        return []
    return ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--bounding-set=-all",
            "--inh-caps=-all"]


class Run:
    """A program on hosts of its own. `holdfast`: folder of the binary; "" for a plain run."""

    def __init__(self, name, user, holdfast):
        self.program, self.user, self.holdfast = PROGRAMS[name], user, holdfast
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="holdfast-hosts-"))
        self.name = f"hp{os.getpid()}x{random.randrange(1 << 20)}"
        self.count = self.program["hosts"]
        # Which host is whose; and its address.
        self.places = list(range(self.count))
        self.addresses = [f"10.77.0.{host + 1}" for host in self.places]
        self.together = False
        self.fronts = []
        for code in [MELT, *CODES.iterdir()]:
            shutil.copy(code, self.folder)
        for kind in ("openmpi", "mpich"):
            if f"mpicc.{kind}" in self.program["needs"]:
                compiler = [f"mpicc.{kind}", "-O2", "-w", "-o", f"stencil-{kind}", "stencil.c"]
                subprocess.run(compiler, cwd=self.folder, check=True)
        melt = self.folder / "melt.lammps"
        melt.write_text(melt.read_text().replace(" 100 melt", " 50 melt"))
        (self.folder / "second").mkdir()
        if user != "root":
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, ORDINARY, ORDINARY)
        os.chmod(self.folder, 0o755)
        subprocess.run([HERE / "up", self.name, str(2 * self.count)], check=True)
        self.socket = f"/tmp/{self.name}.sshd"
        self.sshd = subprocess.Popen([HERE / "sshd", self.name, self.socket], stdin=subprocess.DEVNULL)
        self.until("the ssh server", lambda: os.path.exists(self.socket))
        for host in range(2 * self.count):
            loopback = ["ip", "-n", f"{self.name}-{host}", "link", "set", "lo", "up"]
            subprocess.run(loopback, check=True)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "OMPI", "SLURM"))}
        kept.update(HOME=str(self.folder), HOLDFAST_STORE=f"{self.folder}/store", HOLDFAST_SSH=str(HERE / "ssh"),
                    HOLDFAST_TEST_SSHD=self.socket, PATH="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                    OMPI_MCA_plm_rsh_agent=str(HERE / "ssh"), HYDRA_LAUNCHER_EXEC=str(HERE / "ssh"),
                    HYDRA_LAUNCHER="ssh", TMPDIR=str(self.folder))
        if self.holdfast:
            for name in ("OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER"):
                del kept[name]
        return kept

    def until(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {PATIENCE:.0f} s")
            time.sleep(0.02)

    def at(self, host, words):
        return [HERE / "at", self.name, str(host), *lower(self.user), *words]

    def begin(self, member, words, out):
        host = self.places[member]
        for name in (out, f"err{member}"):
            path = self.folder / name
            path.touch()
            if self.user != "root":
                os.chown(path, ORDINARY, ORDINARY)
        with open(self.folder / out, "ab") as stdout, open(self.folder / f"err{member}", "ab") as stderr:
            self.fronts.append(subprocess.Popen(
                self.at(host, words), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                env=self.environment(), cwd=self.folder, start_new_session=True))

    def start(self):
        for member, line in enumerate(self.program["members"]):
            words = ["/bin/sh", "-c", line]
            if self.holdfast:
                gang = "ssh" if self.program.get("ssh") else f"{member}/{self.count}"
                words = [f"{self.holdfast}/holdfast", "run", "--name", GANG, "--gang", gang, "--", *words]
            self.begin(member, words, f"out{member}")

    def move(self, places):
        """Who is to be where. On a host of several each has an address of its own."""
        self.places, self.together = places, len(set(places)) == 1
        self.addresses = [f"10.77.0.{place + 1}" for place in places]
        if self.together:
            self.addresses[1:] = [f"10.77.0.{100 + member}" for member in range(1, self.count)]
            for address in self.addresses[1:]:
                command = ["ip", "-n", f"{self.name}-{places[0]}", "address", "add", f"{address}/24", "dev", "eth0"]
                subprocess.run(command, check=True)

    def restart(self):
        own = [f"{self.holdfast}/holdfast", "restart", "--stdio", "keep", GANG]
        if self.together:
            own += [f"--map-host=10.77.0.{member + 1}={address}" for member, address in enumerate(self.addresses)]
        if self.program.get("ssh"):
            hosts = ",".join(f"10.77.0.{place + 1}" for place in self.places)
            self.begin(0, [*own, "--gang", "ssh", "--hosts", hosts], "restart.out")
        else:
            for member in range(self.count):
                self.begin(member, [*own, "--gang", f"{member}/{self.count}"], "restart.out")

    def ask(self, *words):
        host = random.choice(self.places)
        command = self.at(host, [f"{self.holdfast}/holdfast", *words])
        return subprocess.run(command, capture_output=True, text=True, env=self.environment(), cwd=self.folder,
                              timeout=PATIENCE, check=False)

    def is_over(self):
        return all(front.poll() is not None for front in self.fronts)

    def checkpoint(self, refused):
        """Whether there is an image: the program may have ended, or not have begun."""
        end = time.monotonic() + PATIENCE
        while not self.is_over() and not self.has_said_all():
            done = self.ask("checkpoint", GANG)
            if done.returncode == 0:
                return True
            refused.append(done.stderr.strip())
            if time.monotonic() > end:
                raise Failed(f"no image: {refused[-1]}")
            time.sleep(0.2)
        return False

    def pids(self):
        found = []
        for host in range(2 * self.count):
            told = subprocess.run(["ip", "netns", "pids", f"{self.name}-{host}"], capture_output=True, text=True,
                                  check=False)
            found += told.stdout.split()
        return found

    def kill(self):
        def all_gone():
            pids = self.pids()
            subprocess.run(["kill", "-9", *pids], stderr=subprocess.DEVNULL, check=False) if pids else None
            return not pids
        self.until("the end of all", all_gone)
        for front in self.fronts:
            front.wait()
        self.fronts = []

    def has_said_all(self):
        last = self.program.get("last")
        return last is not None and last in self.output()[0]

    def wait(self):
        end = time.monotonic() + PATIENCE * 3
        while not self.is_over() and not self.has_said_all():
            if time.monotonic() > end:
                raise Failed("it does not end")
            time.sleep(0.05)
        codes = [front.poll() for front in self.fronts]
        if any(codes):
            raise Failed(f"exit statuses {codes}")

    def output(self):
        dump = self.folder / "melt.dump"
        return (self.folder / "out0").read_bytes(), dump.read_bytes() if dump.exists() else b""

    def said(self):
        texts = [f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                 for pattern in ("err*", "restart.out", "*.err") for path in sorted(self.folder.glob(pattern))]
        return "\n".join(texts)

    def close(self, keep):
        self.kill()
        self.sshd.kill()
        self.sshd.wait()
        pathlib.Path(self.socket).unlink(missing_ok=True)
        subprocess.run([HERE / "down", self.name], check=False)
        if keep:
            print(f"  kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def plain(name, user):
    """The output without Holdfast, and how long it takes."""
    run = Run(name, user, "")
    try:
        begun = time.monotonic()
        run.start()
        run.wait()
        return run.output(), time.monotonic() - begun
    except Failed as why:
        raise Failed(f"without Holdfast: {why}\n{run.said()}") from why
    finally:
        run.close(False)


def form(run, turn, rounds):
    """Who is where. In the end all are on one host, for members of one host stay together. Open MPI 4 listens at port
    1024 of all addresses of each host (its parameter btl_tcp_port_min_v4): of one host only one can."""
    count = run.count
    if turn == rounds - 1 and not run.program.get("apart"):
        return [count] * count
    same, others = list(range(count)), list(range(count, 2 * count))
    return [same, others, others[::-1]][turn % 3]


def chained(given, name, user):
    """Images, refusals and restarts of a run whose output is right."""
    expected, plain_s = plain(name, user)
    run = Run(name, user, given.holdfast)
    images, restarts, refused = 0, 0, []
    try:
        run.start()
        run.until("the first line", lambda: run.is_over() or any(
            path.exists() and path.stat().st_size for path in (run.folder / "out0", run.folder / "melt.dump")))
        for turn in range(given.rounds):
            for _ in range(2):
                time.sleep(random.uniform(0.0, plain_s / given.rounds / 3))
                images += run.checkpoint(refused)
            if run.is_over() or run.has_said_all():
                break
            time.sleep(random.uniform(0.0, 0.3))
            run.kill()
            run.move(form(run, turn, given.rounds))
            run.restart()
            restarts += 1
        run.wait()
        if run.output() != expected:
            raise Failed(f"other output: {run.output()[0][-300:]!r}, not {expected[0][-300:]!r}")
        return images, restarts, refused, plain_s
    except (Failed, subprocess.TimeoutExpired) as why:
        raise Failed(f"after {images} images, {restarts} restarts: {why}\n{run.said()}") from why
    finally:
        run.close(given.keep and sys.exc_info()[0] is not None)


def parsed():
    made = argparse.ArgumentParser()
    made.add_argument("holdfast")
    made.add_argument("--user", choices=("root", "user"), action="append")
    made.add_argument("--rounds", type=int, default=10)
    made.add_argument("--seed", type=int, default=None)
    made.add_argument("--keep", action="store_true", help="keep the folders of those that fail")
    made.add_argument("names", nargs="*", metavar="PROGRAM", help="only those whose names contain it")
    given = made.parse_intermixed_args()
    random.seed(given.seed)
    kit = tempfile.mkdtemp(prefix="holdfast-kit-")
    for name in ("holdfast", "libholdfast.so"):
        shutil.copy(os.path.join(given.holdfast, name), kit)
    os.chmod(kit, 0o755)
    given.holdfast = kit
    return given


def main():
    given, wrong = parsed(), 0
    for name, program in PROGRAMS.items():
        if given.names and not any(part in name for part in given.names):
            continue
        for user in given.user or ("root", "user"):
            label = f"{name}, {user}"
            if not all(os.path.exists(need) or shutil.which(need) for need in program["needs"]):
                print(f"SKIPPED {label}: {', '.join(program['needs'])}", flush=True)
                continue
            try:
                images, restarts, refused, plain_s = chained(given, name, user)
                print(f"right   {label}: {images} images, {restarts} restarts; {len(refused)} refused; "
                      f"plain {plain_s:.0f} s", flush=True)
                for why in sorted(set(refused)):
                    print(f"        refused {refused.count(why)} x: {why}", flush=True)
            except Failed as why:
                wrong += 1
                print(f"WRONG   {label}: {why}", flush=True)
    shutil.rmtree(given.holdfast, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
