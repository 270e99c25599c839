"""What each image that a job keeps costs the next checkpoint, a prune and the report.

A program that does nothing, checkpointed by hand until the store has so many images. Printed for each number of
images: the median time of the last twenty `holdfast checkpoint`, the bytes of `holdfast report`, and the time of
`holdfast prune --keep-last 1`. With BEFORE=PATH of another holdfast binary (its libholdfast.so beside it) the same of
that one, by turns.

Run: /usr/bin/python3 benches/images.py
Environment, all optional: IMAGES=10,300 BEFORE=PATH.
"""

import os
import statistics
import subprocess
import tempfile
import time

import kit

IMAGES = [int(number) for number in os.environ.get("IMAGES", "10,300").split(",")]
LAST = 20


def timed(command):
    """Milliseconds; the command must succeed."""
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - begun) * 1000


def one(binary, count):
    """Figures of a job with so many images."""
    with tempfile.TemporaryDirectory() as store:
        holdfast = [binary, "-q", "--store", store]
        front = subprocess.Popen([*holdfast, "run", "--name", "j", "--", "/bin/sleep", "100000"])
        while subprocess.run([*holdfast, "checkpoint", "j"], capture_output=True, check=False).returncode:
            time.sleep(0.05)
        times = [timed([*holdfast, "checkpoint", "j"]) for _ in range(count - 1)]
        subprocess.run([*holdfast, "kill", "--signal", "KILL", "j"], check=True)
        front.wait()
        report = subprocess.run([*holdfast, "report", "j", "-o", "-"], check=True, capture_output=True).stdout
        pruned = timed([*holdfast, "prune", "j", "--keep-last", "1"])
        return statistics.median(times[-LAST:]), len(report), pruned


def main():
    """The table."""
    binaries = {"after": kit.HOLDFAST}
    if "BEFORE" in os.environ:
        binaries = {"before": os.environ["BEFORE"], **binaries}
    print("| binary | images | checkpoint | report | prune |\n| --- | --- | --- | --- | --- |")
    for count in IMAGES:
        for name, binary in binaries.items():
            took, report, pruned = one(binary, count)
            print(f"| {name} | {count} | {took:.1f} ms | {report / 1000:.0f} kB | {pruned:.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
