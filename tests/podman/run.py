#!/usr/bin/python3
"""Jobs in containers of Podman, with its default seccomp profile: an image in one, the restart in another.

    run.py HOLDFAST ROOT      HOLDFAST: folder with the binary and the library
                              ROOT: a Debian with python3 and redis-server (tests/chroot/base)

Podman of root, and of uid 1000 (rootless); in the containers root and uid 1000: python that counts, redis with a
thousand keys, sqlite in the middle of a transaction. Each is ended with an image, its container is removed, and a
second container of the same image of Podman goes on from it: its output is that of an uninterrupted run.

Called by `make podman`, part of `make test-full`. Needs root and the packages podman, runc and uidmap (crun refuses
hosts with both versions of control groups); without them, or where Podman runs no container at all, it says SKIPPED and
ends with 0. Storage and folders are its own. Every wait has an end.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 300
NEEDED = ("podman", "runc", "newuidmap")
ORDINARY = 1000

COUNT = """
import time
for number in range(60):
    print(number, flush=True)
    time.sleep(0.1)
print("end", flush=True)
"""
SQLITE = """
import sqlite3, time
base = sqlite3.connect("base.db")
base.execute("create table numbers (n)")
for number in range(60):
    base.execute("insert into numbers values (?)", (number,))
    if number % 7 == 6:
        base.commit()
    print(number, flush=True)
    time.sleep(0.1)
base.commit()
print(base.execute("select count(*), sum(n) from numbers").fetchone(), flush=True)
print(base.execute("pragma integrity_check").fetchone(), flush=True)
"""
NUMBERS = "".join(f"{number}\n" for number in range(60))

# In the first container: the program runs, has done something, and is ended with an image.
FIRST = """
cd /work
/kit/holdfast run --name job -- {program} >> out 2> err &
until {ready}; do sleep 0.1; done
{fill}
/kit/holdfast checkpoint --stop job >/dev/null || {{ cat err; exit 1; }}
wait
"""
# In the second: it goes on to its end, or is asked.
SECOND = """
cd /work
/kit/holdfast restart job --stdio keep 2> restart.err &
{asked}
wait
cat out
"""
SOME_LINES = "[ $(wc -l < out) -ge 10 ]"
PONG = "redis-cli ping 2>/dev/null | grep -q PONG"
# Name; program; when it is ready; what is done then; what the second container asks; the right output.
PROGRAMS = (
    ("python", "python3 count.py", SOME_LINES, "", "", NUMBERS + "end\n"),
    ("sqlite", "python3 sqlite.py", SOME_LINES, "", "", NUMBERS + "(60, 1770)\n('ok',)\n"),
    (
        "redis",
        "sh -c 'exec redis-server --save \"\" >/dev/null'",
        PONG,
        'for n in $(seq 1000); do echo "set k$n v$n"; done | redis-cli >/dev/null',
        f"until {PONG}; do sleep 0.1; done; redis-cli dbsize; redis-cli get k777; redis-cli shutdown nosave",
        "1000\nv777\n",
    ),
)


class Podman:
    """Podman of one user of the host."""

    def __init__(self, uid, folder):
        self.uid, self.home = uid, folder / f"home{uid}"
        (self.home / "run").mkdir(parents=True)
        for path in (self.home, self.home / "run"):
            os.chown(path, uid, uid)
        folders = ["--root", f"{self.home}/storage", "--runroot", f"{self.home}/run/podman"]
        self.base = ["podman", *folders, "--runtime", "runc"]
        if uid:
            self.base = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] + self.base

    def call(self, words, **options):
        environment = dict(os.environ, HOME=str(self.home), XDG_RUNTIME_DIR=str(self.home / "run"))
        environment.pop("HOLDFAST_STORE", None)
        options = {"capture_output": True, "text": True, "timeout": LIMIT, **options}
        return subprocess.run(self.base + words, cwd=self.home, env=environment, **options)

    def import_root(self, root):
        with subprocess.Popen(["tar", "-C", root, "-c", "--exclude=./dev/*", "."], stdout=subprocess.PIPE) as tar:
            done = self.call(["import", "-", "base"], stdin=tar.stdout)
        return done.returncode == 0, done.stderr

    def container(self, user, mounts, script):
        """A new container; limits lower than the host's, which a host in a container cannot raise."""
        words = ["run", "--rm", "--network=none", "--ulimit=nofile=1024:4096", "--ulimit=nproc=1000:2000"]
        words += [f"--user={user}", "--env=HOME=/work", "--env=HOLDFAST_STORE=/work/store"]
        words += [word for mount in mounts for word in ("-v", mount)]
        return self.call(words + ["base", "sh", "-c", script])

    def remove(self):
        self.call(["system", "reset", "--force"])


def shown(podman, user, row, kit, folder):
    """Whether the program goes on right in a second container; else what was seen."""
    name, program, ready, fill, asked, right = row
    work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    work.chmod(0o777)
    (work / "count.py").write_text(COUNT)
    (work / "sqlite.py").write_text(SQLITE)
    mounts = [f"{kit}:/kit:ro", f"{work}:/work"]
    first = podman.container(user, mounts, FIRST.format(program=program, ready=ready, fill=fill))
    if first.returncode:
        return f"the image: {first.stdout}{first.stderr}"
    second = podman.container(user, mounts, SECOND.format(asked=asked))
    if second.stdout == right:
        return None
    error = work / "restart.err"
    return f"the restart: {second.stdout}{second.stderr}{error.read_text() if error.exists() else ''}"


def ids_below(uid):
    """Lets rootless Podman have other ids than the user's own, if it may not yet."""
    name = subprocess.run(["getent", "passwd", str(uid)], capture_output=True, text=True).stdout.split(":")[0]
    if not name:
        subprocess.run(["useradd", "--uid", str(uid), "holdfast-podman"], check=True)
        name = "holdfast-podman"
    for path in ("/etc/subuid", "/etc/subgid"):
        text = Path(path).read_text() if os.path.exists(path) else ""
        if not any(line.startswith((f"{name}:", f"{uid}:")) for line in text.splitlines()):
            Path(path).write_text(f"{text}{name}:200000:65536\n")


def main():
    release, root = Path(sys.argv[1]), Path(sys.argv[2])
    if os.geteuid() or not all(map(shutil.which, NEEDED)):
        print("SKIPPED: it needs root and the packages podman, runc and uidmap")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="holdfast-podman-"))
    folder.chmod(0o755)
    kit = folder / "kit"
    kit.mkdir()
    for name in ("holdfast", "libholdfast.so"):
        shutil.copy(release / name, kit)
    ids_below(ORDINARY)
    wrong = count = 0
    try:
        for uid in (0, ORDINARY):
            podman = Podman(uid, folder)
            imported, why = podman.import_root(root)
            tried = podman.container(0, [], "true") if imported else None
            if not tried or tried.returncode:
                print(f"SKIPPED: uid {uid}'s Podman runs no container here: {tried.stderr if tried else why}")
                continue
            for user in (0, ORDINARY):
                jobs = folder / f"jobs{uid}-{user}"
                jobs.mkdir()
                jobs.chmod(0o777)
                for row in PROGRAMS:
                    seen = shown(podman, user, row, kit, jobs)
                    count, wrong = count + 1, wrong + bool(seen)
                    print(f"Podman of uid {uid}, user {user} in it, {row[0]}: {seen or 'right'}", flush=True)
            podman.remove()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{count - wrong} of {count} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
