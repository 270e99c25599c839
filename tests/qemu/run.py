#!/usr/bin/python3
"""Jobs on another kernel and C library than this host's: a virtual machine of QEMU that checks, prints, and goes.

    run.py HOLDFAST ROOT      HOLDFAST: folder with the binary and the library
                              ROOT: a Debian with python3, redis-server and a kernel in /boot (`make kernel`)

As root and as uid 1000 of the machine, each is ended with an image and restarted, and its output is that of an
uninterrupted run: python that counts in threads, in processes, without restartable sequences
(GLIBC_TUNABLES=glibc.pthread.rseq=0), and redis with a thousand keys. Before that `holdfast doctor`.

Called by `make kernel`, part of `make test-full`. Needs root, QEMU for x86 and cpio; without them it says SKIPPED and
ends with 0. It is QEMU's own translator (minutes): a KVM within a virtual machine may not know all instructions.
Nothing of the host is changed: the machine has no network, and its disk is its memory.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 1500
NEEDED = ("qemu-system-x86_64", "cpio")
# What is not needed to run: the archive is unpacked into the machine's memory.
LEFT_OUT = (
    *("./boot", "./dev", "./proc", "./sys", "./lib/modules", "./usr/lib/modules", "./var/cache", "./var/lib/apt"),
    *("./usr/share/doc", "./usr/share/locale", "./usr/share/man"),
)
SAYS = "machine: "

# Process 1 of the machine.
INIT = r"""#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PATH HOME
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmp /tmp
ip link set lo up 2>/dev/null || python3 -c '
import fcntl, socket, struct
lo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(lo, 0x8914, struct.pack("16sh14x", b"lo", 1))'
useradd --uid 1000 --create-home user 2>/dev/null
python3 /kit/inside.py 2>&1
sync
echo o > /proc/sysrq-trigger
sleep 60
"""

# What it runs.
INSIDE = r'''
import os, platform, subprocess, sys, time
SAYS = "machine: "
def say(*words):
    print(SAYS + " ".join(map(str, words)), flush=True)
THREADS = """
import threading, time
def work(n):
    global total
    for k in range(200):
        with lock: total += n
        time.sleep(.05)
lock, total = threading.Lock(), 0
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
print("ready", flush=True)
[t.start() for t in threads]; [t.join() for t in threads]
print("end", total, flush=True)
"""
PROCESSES = """
import os, time
reads, writes = os.pipe()
print("ready", flush=True)
if os.fork() == 0:
    for n in range(200):
        os.write(writes, b"x"); time.sleep(.05)
    os._exit(7)
os.close(writes)
got = b"".join(iter(lambda: os.read(reads, 1), b""))
print("end", len(got), os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
ROWS = (
    ("threads", ["python3", "-c", THREADS], {}, "ready\nend 2000\n"),
    ("no rseq", ["python3", "-c", THREADS], {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, "ready\nend 2000\n"),
    ("processes", ["python3", "-c", PROCESSES], {}, "ready\nend 200 7\n"),
    ("redis", ["redis-server", "--save", "", "--logfile", "redis.log"], {}, None),
)
def as_user(uid):
    if not uid:
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
def until(what, seconds=200):
    for _ in range(seconds * 10):
        if what():
            return
        time.sleep(.1)
    raise TimeoutError
def cli(*words):
    return subprocess.run(["redis-cli", *words], capture_output=True, text=True).stdout.strip()
def right(uid, name, program, more, wanted):
    work = f"/tmp/{uid}-{name.replace(' ', '-')}"
    os.mkdir(work); os.chown(work, uid, uid)
    def holdfast(words, **options):
        env = dict(os.environ, HOME=work, HOLDFAST_STORE=work + "/store", **more)
        return subprocess.Popen(as_user(uid) + ["/kit/holdfast", *words], env=env, cwd=work, **options)
    text = lambda file: open(f"{work}/{file}").read()
    out, err = open(work + "/out", "w"), open(work + "/err", "w")
    [os.chown(f"{work}/{name}", uid, uid) for name in ("out", "err")]
    front = holdfast(["run", "--name", "job", "--", *program], stdout=out, stderr=err)
    if wanted:
        until(lambda: text("out"))
        time.sleep(.5)
    else:
        until(lambda: cli("ping") == "PONG")
        lines = "".join(f"set k{n} v{n}\n" for n in range(1000))
        subprocess.run(["redis-cli"], input=lines, text=True, stdout=subprocess.DEVNULL)
    if holdfast(["checkpoint", "--stop", "job"], stdout=subprocess.DEVNULL).wait():
        return "no image: " + text("err")
    front.wait()
    again = holdfast(["restart", "job", "--stdio", "keep"], stderr=open(work + "/err2", "w"))
    if not wanted:
        until(lambda: cli("ping") == "PONG" or again.poll() is not None)
        seen = (cli("dbsize"), cli("get", "k777"))
        cli("shutdown", "nosave")
        again.wait()
        return None if seen == ("1000", "v777") else f"{seen}: {text('err2')}"
    again.wait()
    return None if text("out") == wanted else f"{text('out')!r}: {text('err2')}"
say("Linux", platform.release(), *platform.libc_ver())
for uid in (0, 1000):
    env = dict(os.environ, HOME="/tmp")
    seen = subprocess.run(as_user(uid) + ["/kit/holdfast", "doctor"], capture_output=True, text=True, env=env)
    say(f"doctor, user {uid}: status {seen.returncode}")
    [say("  " + line) for line in seen.stdout.splitlines() if seen.returncode]
    for name, program, more, wanted in ROWS:
        try:
            why = right(uid, name, program, more, wanted)
        except Exception as error:
            why = repr(error)
        say(f"row user {uid}, {name}:", why.replace("\n", " | ") if why else "right")
say("done")
'''


def archive(root, release, folder):
    """The machine's files: those of the Debian, then ours."""
    own = folder / "own"
    (own / "kit").mkdir(parents=True)
    for name in ("holdfast", "libholdfast.so"):
        shutil.copy(release / name, own / "kit")
    (own / "kit" / "inside.py").write_text(INSIDE)
    (own / "init").write_text(INIT)
    (own / "init").chmod(0o755)
    left_out = " ".join(f"-path {path} -prune -o" for path in LEFT_OUT)
    packed = folder / "files.cpio"
    pack = "cpio --quiet -o -H newc"
    for folder, filters, mode in ((root, f"{left_out} -print", ">"), (own, "", ">>")):
        subprocess.run(["sh", "-c", f"cd {folder} && find . {filters} | {pack} {mode} {packed}"], check=True)
    return packed


def main():
    release, root = Path(sys.argv[1]), Path(sys.argv[2])
    kernels = sorted((root / "boot").glob("vmlinuz-*"))
    if os.geteuid() or not kernels or not all(map(shutil.which, NEEDED)):
        print("SKIPPED: it needs root, QEMU for x86, cpio, and a Debian with a kernel")
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-kernel-") as folder:
        packed = archive(root, release, Path(folder))
        words = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "3G", "-smp", "2"]
        words += ["-nographic", "-no-reboot", "-nic", "none", "-kernel", kernels[-1], "-initrd", packed]
        words += ["-append", "console=ttyS0 panic=-1 quiet"]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "errors": "replace"}
        with subprocess.Popen(words, **options) as machine:
            guard = subprocess.Popen(["sh", "-c", f"sleep {LIMIT}; kill {machine.pid}"])
            lines = []
            for line in machine.stdout:
                if SAYS in line:
                    lines.append(line.split(SAYS, 1)[1].strip())
                    print(lines[-1], flush=True)
                elif os.environ.get("HOLDFAST_TEST_KEEP"):
                    print(line, end="", flush=True)
            guard.kill()
    rows = [line for line in lines if line.startswith("row ")]
    wrong = [line for line in rows if not line.endswith(": right")]
    if not lines or lines[-1] != "done":
        print("the machine has not come to its end (HOLDFAST_TEST_KEEP=1 shows its console)")
        return 1
    print(f"{len(rows) - len(wrong)} of {len(rows)} right")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
