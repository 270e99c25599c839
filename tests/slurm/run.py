#!/usr/bin/python3
"""The README's batch script under Slurm itself: a cluster of one host, started and ended here.

    run.py HOLDFAST [TRACKER ...]      HOLDFAST: folder with the binary and the library; TRACKER: see TRACKERS

For each process tracker, as root and as uid 1000 by turns:

* signalled, array: the script as it stands, one job and an array of two. Slurm sends TERM before the end, the job gives
  an image and 75, is put into the queue again, goes on, and ends with its own status.
* limited, without_srun: without that signal, with srun and without. Slurm sends TERM to all it finds at the time limit,
  the batch shell too, and a moment later KILL; the job is requeued from outside.

Each line of the program is in the output once, in order, none missing, and nothing else but what `holdfast` and Slurm
say.

Called by `make slurm`, part of `make test-full`. Needs root and Debian's packages slurm-wlm and munge; without them it
says SKIPPED and ends with 0. A tracker that this host cannot have is SKIPPED, too, with Slurm's words. Ports, keys and
folders are its own: a Slurm that runs on this host already is left alone. Every wait has an end (minutes: Slurm looks
at time limits twice a minute, and none is shorter than a minute). HOLDFAST_TEST_KEEP=1 keeps the folder.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
TRACKERS = ("linuxproc", "pgid", "cgroup")
# From a start to its end: a minute, what Slurm's clock rounds, and a busy machine.
LIMIT = 200.0
ORDINARY = 1000
README = Path(__file__).resolve().parents[2] / "README.md"

# Stands for the user's program: its output is complete when each number is there once.
SIM = """#!/usr/bin/python3
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    print(f"line {number}", flush=True)
    number += 1
    time.sleep(0.1)
print(f"done {number}", flush=True)
sys.exit(3)
"""

CONF = """\
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/{tracker}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=10
MessageTimeout=60
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 State=UNKNOWN
SlurmdParameters=config_overrides
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Failed(Exception):
    """What went wrong, for people."""


class Impossible(Exception):
    """What this host cannot do, for people."""


def until(what, condition):
    """Its value, once it is true; `what` is it, in words or as a function that has them."""
    end = time.monotonic() + LIMIT
    while not (value := condition()):
        if time.monotonic() > end:
            raise Failed(f"{what()[-500:] if callable(what) else what}: not within {LIMIT:.0f} s")
        time.sleep(0.2)
    return value


def free_ports(count):
    """Ports that nobody listens at, all held until all are known."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """One host, with a process tracker."""

    def __init__(self, folder, tracker):
        self.folder, self.tracker = folder, tracker
        self.daemons = []
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        self.keyed()
        conf = CONF.format(
            host=socket.gethostname().split(".")[0], folder=self.folder, ports=free_ports(2), tracker=self.tracker
        )
        (self.folder / "slurm.conf").write_text(conf)
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def keyed(self):
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n")

    def start_munge(self):
        names = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        # --force: /tmp is anybody's, which munged does not like.
        self.start("munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key",
                   f"--socket={names['socket']}", f"--pid-file={names['pid']}", f"--log-file={names['log']}",
                   f"--seed-file={names['seed']}")
        until("munged", names["socket"].exists)

    def start_all(self):
        self.start_munge()
        self.start("slurmctld", "-D")
        slurmd = self.start("slurmd", "-D")
        idle = lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t", check=False)
        until("a host that is idle", lambda: slurmd.poll() is not None or idle())
        if slurmd.poll() is not None:
            log = (self.folder / "slurmd.log").read_text().splitlines()
            errors = [line for line in log if "error" in line] or log
            raise Impossible("; ".join(errors[-3:]))

    def start(self, *words):
        with open(self.folder / f"{words[0]}.log", "ab") as log:
            daemon = subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.daemons.append(daemon)
        return daemon

    def __exit__(self, *_):
        self.ask("scancel", "--state=PENDING", check=False)
        self.ask("scancel", "--state=RUNNING", check=False)
        # Last started first: slurmd ends what it runs while the controller still listens.
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # What slurmd leaves: empty, or another Slurm's.
        for left in Path("/sys/fs/cgroup/freezer").glob("slurm*"):
            try:
                left.rmdir()
            except OSError:
                pass

    def ask(self, *words, check=True, **more):
        """What one of Slurm's commands says."""
        done = subprocess.run(words, env=self.env, text=True, capture_output=True, timeout=LIMIT, **more)
        if check and done.returncode != 0:
            raise Failed(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def about(self, job):
        """What `scontrol show job` has of a job, or of a task of an array."""
        text = self.ask("scontrol", "-o", "show", "job", job, check=False)
        return dict(re.findall(r"(\w+)=(\S*)", text))


def readme_script(store):
    """The README's, with a folder of ours for its /scratch/$USER."""
    found = re.search(r"```\n(#!/bin/bash\n#SBATCH.*?)```", README.read_text(), re.S)
    if not found or "/scratch/$USER/holdfast" not in found[1]:
        raise Failed("the README has no batch script any more that this test knows")
    return found[1].replace("/scratch/$USER/holdfast", str(store))


class Job:
    """A batch job in a folder of its own."""

    def __init__(self, cluster, folder, user, binaries):
        self.cluster, self.folder, self.user = cluster, folder, user
        self.store = folder / "store"
        folder.mkdir(parents=True)
        program = folder / "sim"
        program.write_text(SIM)
        program.chmod(0o755)
        os.chown(folder, user, user)
        self.env = cluster.env | {"PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(folder)}
        # Who asks is in no job of Slurm's, and in none of holdfast's.
        for name in [name for name in self.env if name.startswith(("HOLDFAST_", "SLURM_JOB", "SBATCH_"))]:
            del self.env[name]

    def submit(self, script, *options):
        path = self.folder / "batch"
        path.write_text(script)
        identity = {} if self.user == 0 else {"user": self.user, "group": self.user, "extra_groups": []}
        words = ["sbatch", "--parsable", "--time=1", "--mem=100", *options, str(path)]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=LIMIT, **identity
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip().split(";")[0]

    def start_again(self, job, requeue=False):
        """Waits until it is in the queue once more, and has it start soon: Slurm would wait for two minutes."""
        if requeue:
            state = lambda: self.cluster.about(job)
            ended = lambda: state().get("JobState") == "TIMEOUT" or state().get("Restarts") == "1"
            until(f"job {job} over its limit", ended)
            if state().get("Restarts") != "1":
                self.cluster.ask("scontrol", "requeue", job)
        again = lambda: self.cluster.about(job).get("Restarts") == "1"
        until(f"job {job} in the queue again", again)
        # Not at once: slurmd takes credentials of the second in which it has ended a job for those of that job.
        self.cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+5")

    def output(self, name):
        path = self.folder / f"slurm-{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def finish(self, jobs):
        """Lets the program end, once each job is in its second life, and looks at all that it has said."""
        goes_on = lambda name: "goes on from image" in self.output(name)
        for job, name in jobs:
            said = lambda name=name: self.output(name)
            until(said, lambda name=name: goes_on(name))
            lines = self.output(name).count("\nline ")
            until(f"more lines of job {job}", lambda: self.output(name).count("\nline ") > lines + 5)
        (self.folder / "input.dat").touch()
        for job, name in jobs:
            over = lambda: self.cluster.about(job).get("JobState") not in ("RUNNING", "COMPLETING", "PENDING")
            until(f"the end of job {job}", over)
            about = self.cluster.about(job)
            if about.get("ExitCode") != "3:0":
                raise Failed(f"job {job}: {about.get('JobState')} {about.get('ExitCode')}: {self.output(name)[-500:]}")
            complete(self.output(name))


def complete(text):
    """Whether each line of the program is there once, in its order.

    At a time limit srun is told to end in the same moment as the program, and passes on no more of what the program
    says until its image is made: such lines Slurm loses, which is why the README's script has a signal before.
    """
    said = [line for line in text.splitlines() if line.startswith(("line ", "done "))]
    numbers = [int(line.split()[1]) for line in said]
    gaps = [(one, two) for one, two in zip([-1] + numbers, numbers) if two != one + 1]
    may_lack = "srun: Job step aborted" in text and len(gaps) == 1 and 1 < gaps[0][1] - gaps[0][0] < 100
    if gaps and not may_lack or "\0" in text or not said[-1].startswith("done "):
        raise Failed(f"the output is not complete: {gaps}: {text[-2000:]}")
    others = [line for line in text.splitlines() if line not in said]
    for line in others:
        if not re.match(r"holdfast: |srun: |slurmstepd", line):
            raise Failed(f"what does this line come from: {line}")


def signalled(cluster, folder, user, binaries):
    job = Job(cluster, folder, user, binaries)
    number = job.submit(readme_script(job.store), "--signal=TERM@40")
    job.start_again(number)
    job.finish([(number, number)])


def array(cluster, folder, user, binaries):
    job = Job(cluster, folder, user, binaries)
    number = job.submit(readme_script(job.store), "--signal=TERM@40", "--array=0-1")
    tasks = [(f"{number}_{task}", f"{number}_{task}") for task in range(2)]
    for task, _ in tasks:
        job.start_again(task)
    job.finish(tasks)


def limited(cluster, folder, user, binaries, srun=True):
    job = Job(cluster, folder, user, binaries)
    script = readme_script(job.store)
    script = "".join(line for line in script.splitlines(True) if "--signal" not in line)
    if not srun:
        # The batch shell alone gets the signal then, and its end would be that of all.
        passing_on = r"trap 'kill -TERM $pid' TERM\n\1 &\npid=$!\nwait $pid; wait $pid"
        script = re.sub(r"srun (holdfast .*)", passing_on, script)
    number = job.submit(script)
    job.start_again(number, requeue=True)
    job.finish([(number, number)])


def without_srun(*where):
    limited(*where, srun=False)


def main():
    binaries, trackers = Path(sys.argv[1]).resolve(), sys.argv[2:] or TRACKERS
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        print(f"Slurm: SKIPPED: needs root, and packages slurm-wlm and munge (missing: {', '.join(missing) or '-'})")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
    folder.chmod(0o755)
    # uid 1000 may not be able to enter the checkout.
    (folder / "bin").mkdir()
    for name in ("holdfast", "libholdfast.so"):
        shutil.copy(binaries / name, folder / "bin" / name)
    failed = 0
    for at, tracker in enumerate(trackers):
        try:
            with Cluster(folder / tracker, tracker) as cluster:
                for turn, test in enumerate((signalled, array, limited, without_srun)):
                    user = ORDINARY if (at + turn) % 2 == 0 else 0
                    begun = time.monotonic()
                    what = f"Slurm, {tracker}, {test.__name__}, uid {user}"
                    try:
                        test(cluster, folder / "jobs" / tracker / test.__name__, user, folder / "bin")
                        print(f"{what}: ok ({time.monotonic() - begun:.0f} s)", flush=True)
                    except Failed as why:
                        failed += 1
                        print(f"{what}: FAILED: {why}", flush=True)
        except Impossible as why:
            print(f"Slurm, {tracker}: SKIPPED: slurmd does not start here: {why}", flush=True)
    if "HOLDFAST_TEST_KEEP" in os.environ:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
