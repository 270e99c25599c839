#!/usr/bin/python3
"""`stress-ng --verify`, one stressor at a time: ended with an image at a random moment, and restarted.

    stressors.py HOLDFAST [--user root|user] [--jobs N] [--seed N] [--keep] [STRESSOR ...]

HOLDFAST: the folder with the binary and the library. Those count that pass plain: one worker, a few seconds, little
memory. With the restart they have to end with status 0. A checkpoint that is refused is asked for again until the
stressor ends: then there is no image. A line per stressor; at the end the sums, and why there was no image. Status 1:
less than 97 % of those with root's image ended well. Needs Debian's package stress-ng; without it: SKIPPED, status 0.
Called by `make support`.
"""
import collections
import random
import shutil
import subprocess
import sys
import time

from job import Job, outcomes, parsed, parser

# They change the host, or take all of its memory.
NOT_HERE = """
apparmor bad-ioctl bigheap bind-mount binderfs cpu-online dev efivar icmp-flood idle-page ioport klog kvm memhotplug
mmapfork
netdev oom-pipe pci physpage plugin priv-instr procfs quota ramfs rawdev reboot smi softlockup swap sysbadaddr sysfs
sysinval tun umount uprobe vforkmany watchdog x86syscall
""".split()
SECONDS = 8
# Where it says so it did nothing here.
ENDED_AT_ONCE = ("skipp", "not implemented", "No stress workers", "finished prematurely", "fail:")
TRIES = 4
LITTLE = """--vm-bytes 32m --mmap-bytes 16m --shm-bytes 1m --shm-sysv-bytes 1m --hdd-bytes 8m --fallocate-bytes 8m
--iomix-bytes 8m --readahead-bytes 8m --seek-size 8m --sync-file-bytes 8m --vm-rw-bytes 16m --memfd-bytes 8m
--mremap-bytes 16m --msync-bytes 8m --sendfile-size 4m --memrate-bytes 16m --dir-dirs 512 --clone-max 16 --exec-max 8
--fiemap-bytes 32m --forkheavy-procs 32 --loadavg-max 32 --mlockmany-procs 16 --open-max 256 --pthread-max 16
--pty-max 8 --sleep-max 32 --zombie-max 32""".split()


def command(stressor):
    # What a stressor may take of memory and of the disk: others work on the machine.
    return ["prlimit", "--data=512000000", "--fsize=268435456", "stress-ng", "--verify", f"--{stressor}", "1",
            "--timeout", f"{SECONDS}", "--temp-path", "FOLDER", "--no-rand-seed", *LITTLE]


def passes(job, status):
    said = job.said()
    return status == 0 and not any(words in said for words in ENDED_AT_ONCE)


def plain(user, stressor):
    job = Job("", user, command(stressor), 60)
    try:
        status = job.wait()
        return passes(job, status), f"status {status}"
    finally:
        job.close()


def restarted(options, user, stressor):
    """(word, lines that say why). One that has ended before its image is tried again, sooner."""
    latest = 0.5 * SECONDS
    for _ in range(TRIES):
        word, lines = restarted_once(options, user, stressor, latest)
        if word != "too late":
            break
        latest /= 2
    return word, lines


def restarted_once(options, user, stressor, latest):
    job = Job(options.holdfast, user, command(stressor), 90)
    word, lines = "", []
    try:
        time.sleep(random.uniform(0.3, max(0.3, latest)))
        while job.front.poll() is None and not job.checkpoint("--stop"):
            time.sleep(0.05)
        status = job.wait()
        lines = [f"refused {number}: {why}" for number, why in job.refused.values()]
        if not job.images:
            word = "no image" if lines else "too late"
            word = word if status == 0 else f"FAILED without an image: {status}"
        else:
            job.restart()
            status = job.wait()
            word = "right" if status == 0 else "FAILED"
        if "FAILED" in word:
            lines += [f"status {status}; {job.folder}", job.said().strip()[-1500:]]
        return word, lines
    finally:
        job.close(keep=options.keep and "FAILED" in word)


def one(options, user, stressor):
    good, why = plain(user, stressor)
    return (stressor, user, *(restarted(options, user, stressor) if good else ("not plain", [why])))


def main():
    options = parsed(parser("STRESSOR"))
    if not shutil.which("stress-ng"):
        print("SKIPPED: stress-ng is not here")
        return 0
    there = subprocess.run(["stress-ng", "--stressors"], capture_output=True, text=True, check=True).stdout.split()
    names = options.names or [name for name in there if name not in NOT_HERE]
    words = collections.defaultdict(collections.Counter)
    for stressor, user, word, lines in outcomes(options, one, names):
        words[user][word.split(":")[0]] += 1
        print(f"| {stressor} | {user} | {word} |", flush=True)
        for line in lines if word != "not plain" else []:
            print(f"    {line}", flush=True)
    good = True
    for user, counts in sorted(words.items()):
        right = counts["right"]
        asked = sum(counts.values()) - counts["not plain"]
        print(f"{user}: {right} of {asked} right ({dict(counts)})")
        good = good and (user != "root" or right >= 0.97 * asked)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
