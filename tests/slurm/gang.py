#!/usr/bin/python3
"""The recipe for a gang under Slurm itself: a cluster of two hosts that are network namespaces, started and ended here.

    gang.py HOLDFAST      HOLDFAST: folder with the binary and the library

examples/recipes/slurm-gang.sh as it stands, as root and as uid 1000: Slurm sends TERM before the end, both members give
an image and end with 75, the job is put into the queue again, goes on, and ends with its own status. The two programs
talk by TCP, and each line of theirs is in the output once, in order. Called by `make slurm`; what run.py needs.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import run

HOSTS = Path(__file__).resolve().parents[1] / "hosts"
RECIPE = Path(__file__).resolve().parents[2] / "examples" / "recipes" / "slurm-gang.sh"

# Member 1 sends each number back; member 0 prints it.
SIM = """#!/usr/bin/python3
import os, socket, sys, time
if os.environ["SLURM_PROCID"] == "0":
    server = socket.create_server(("10.77.0.1", 29501))
    other = server.accept()[0].makefile("rw")
    number = 0
    while not os.path.exists(sys.argv[1]):
        print(number, file=other, flush=True)
        print(f"line {int(other.readline())}", flush=True)
        number += 1
        time.sleep(0.1)
    print(f"done {number}", flush=True)
else:
    while True:
        try:
            other = socket.create_connection(("10.77.0.1", 29501)).makefile("rw")
            break
        except OSError:
            time.sleep(0.1)
    for line in other:
        print(line, end="", file=other, flush=True)
sys.exit(3)
"""

CONF = run.CONF.replace("SlurmctldHost={host}(127.0.0.1)", "SlurmctldHost={host}-0(10.77.0.1)").replace(
    "{folder}/spool", "{folder}/spool/%n").replace("NodeName={host} NodeAddr=127.0.0.1", (
        "SlurmdPidFile={folder}/slurmd.%n.pid\n"
        "NodeName={host}-[0-1] NodeAddr=10.77.0.[1-2]")).replace("Nodes={host}", "Nodes={host}-[0-1]")


class Hosts(run.Cluster):
    """Two hosts. Whoever asks is on the first one."""

    def __init__(self, folder):
        super().__init__(folder, "linuxproc")
        self.name = f"hsl{os.getpid()}"

    def __enter__(self):
        subprocess.run([HOSTS / "up", self.name, "2"], check=True)
        try:
            for host in range(2):
                (self.folder / "spool" / f"{self.name}-{host}").mkdir(parents=True)
            (self.folder / "state").mkdir()
            conf = CONF.format(host=self.name, folder=self.folder, ports=run.free_ports(2), tracker=self.tracker)
            (self.folder / "slurm.conf").write_text(conf)
            self.keyed()
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        subprocess.run([HOSTS / "down", self.name], check=False)

    def at(self, host, words):
        return [HOSTS / "at", self.name, str(host), *words]

    def start_all(self):
        self.start_munge()
        self.start("slurmctld", "-D")
        for host in range(2):
            self.start("slurmd", "-D", host=host)
        idle = lambda: self.ask("sinfo", "-h", "-o", "%t %D", check=False).split() == ["idle", "2"]
        run.until("two hosts that are idle", idle)

    def start(self, *words, host=0):
        with open(self.folder / f"{words[0]}.{host}.log", "ab") as log:
            words = self.at(host, words)
            daemon = subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.daemons.append(daemon)
        return daemon

    def ask(self, *words, check=True, **more):
        return super().ask(*self.at(0, words), check=check, **more)


def goes_on(cluster, folder, user, binaries):
    """The recipe's job ends right in its second life."""
    job = run.Job(cluster, folder, user, binaries)
    (folder / "sim").write_text(SIM)
    script = RECIPE.read_text().replace("/scratch/$USER/holdfast", str(job.store))
    (folder / "batch").write_text(script)
    lower = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    words = [*lower, "sbatch", "--parsable", "--time=1", "--mem=100", "--signal=TERM@40", "batch"]
    done = subprocess.run(cluster.at(0, words), cwd=folder, env=job.env, text=True, capture_output=True, check=False,
                          timeout=run.LIMIT)
    if done.returncode != 0:
        raise run.Failed(f"sbatch: {done.stderr.strip()}")
    number = done.stdout.strip().split(";")[0]
    job.start_again(number)
    job.finish([(number, number)])


def main():
    binaries = Path(sys.argv[1]).resolve()
    missing = [name for name in run.NEEDED if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        print(f"Slurm, gang: SKIPPED: needs root, and slurm-wlm and munge (missing: {', '.join(missing) or '-'})")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
    folder.chmod(0o755)
    (folder / "bin").mkdir()
    for name in ("holdfast", "libholdfast.so"):
        shutil.copy(binaries / name, folder / "bin" / name)
    failed = 0
    try:
        with Hosts(folder / "cluster") as cluster:
            for user in (0, run.ORDINARY):
                begun = time.monotonic()
                try:
                    goes_on(cluster, folder / "jobs" / str(user), user, folder / "bin")
                    print(f"Slurm, gang, uid {user}: ok ({time.monotonic() - begun:.0f} s)", flush=True)
                except run.Failed as why:
                    failed += 1
                    print(f"Slurm, gang, uid {user}: FAILED: {why}", flush=True)
    except run.Failed as why:
        failed += 1
        print(f"Slurm, gang: FAILED: {why}", flush=True)
    if "HOLDFAST_TEST_KEEP" in os.environ:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
