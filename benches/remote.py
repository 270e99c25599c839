"""How fast an image goes to an object store and comes back; `make bench-remote`. Prints a table, beside the floor.

Three Garage nodes on this host (tests/garage), so that no network is in the way and all three copies are made by the
same processors and one disk. A heap of noise (programs/dirtier.c) is checkpointed, and its agent dies at the first
piece that it copies; `holdfast sync` then puts the image there, and `holdfast fetch` takes it back into an empty store,
both timed as a whole, with opening, listing and checks.

  floor          the same bytes by four curls at a time, each with its part: put from files, get to /dev/null

Environment, all optional: HEAP=512 (MiB), RUNS=3, HOLDFAST_GARAGE_FSYNC=true (nodes that fsync, as docs/remote.md has
them). Needs six times HEAP of disk in TMPDIR.
"""

import os
import shutil
import subprocess
import time

import kit

HEAP = int(os.environ.get("HEAP", "512"))
RUNS = int(os.environ.get("RUNS", "3"))
CURLS = 4
CLUSTER = os.path.join(kit.ROOT, "tests/garage/cluster.py")


def cluster(bench, what):
    """Starts or ends the nodes; returns what it prints."""
    command = ["/usr/bin/python3", CLUSTER, what, os.path.join(bench.work, "cluster")]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def timed(work):
    """Seconds that a function takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def image_on_disk(bench, tier):
    """A job that is dead, whose image is in the store alone; its bytes."""
    program = bench.compile("dirtier")
    job = bench.start(["--tier", tier], [program, str(HEAP), "plain"], {"HOLDFAST_FAULT": "cascade-piece"})
    job.wait_line("ready")
    try:
        job.checkpoint()
    except kit.Trouble:
        pass  # its agent was quicker to die than to answer
    job.show_after(0)
    job.kill()
    job.wait_end()
    folder = os.path.join(bench.store, job.name)
    return job, sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.startswith("segment-"))


def holdfast(bench, number):
    """Seconds of a sync and of a fetch, and the bytes of the image."""
    tier = f"s3://holdfast/bench{number}"
    job, size = image_on_disk(bench, tier)
    put = timed(lambda: bench.holdfast("sync", job.name))
    shutil.rmtree(os.path.join(bench.store, job.name))
    get = timed(lambda: bench.holdfast("fetch", "--tier", tier, job.name))
    shutil.rmtree(os.path.join(bench.store, job.name))
    return put, get, size


def curls(bench, words_of):
    """Runs as many curls at a time as there are parts, with these words."""
    env = bench.environment
    common = ["curl", "--silent", "--show-error", "--fail", "--aws-sigv4", "aws:amz:garage:s3"]
    # What TLS would protect; without it Garage takes this as well, and nobody hashes.
    common += ["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    common += ["--user", f"{env['AWS_ACCESS_KEY_ID']}:{env['AWS_SECRET_ACCESS_KEY']}"]
    running = [subprocess.Popen(common + words_of(part)) for part in range(CURLS)]
    if any([one.wait() != 0 for one in running]):
        raise kit.Trouble("curl failed")


def floor(bench, number, size):
    """Seconds of a put and of a get of so many bytes."""
    base = f"{bench.environment['AWS_ENDPOINT_URL']}/holdfast/floor{number}"
    parts = [os.path.join(bench.work, f"part{part}") for part in range(CURLS)]
    for part in parts:
        with open(part, "wb") as file:
            for _ in range(size // CURLS // kit.MIB):
                file.write(os.urandom(kit.MIB))
    put = timed(lambda: curls(bench, lambda part: ["--upload-file", parts[part], f"{base}-{part}"]))
    get = timed(lambda: curls(bench, lambda part: ["--output", "/dev/null", f"{base}-{part}"]))
    for part in parts:
        os.unlink(part)
    return put, get


def main():
    """Both, in turn."""
    bench, load = kit.Bench(), kit.LoadWatch()
    try:
        for line in cluster(bench, "up").splitlines():
            name, value = line.removeprefix("export ").split("=", 1)
            bench.environment[name] = value
        found = []
        for number in range(RUNS):
            put, get, size = holdfast(bench, number)
            found.append((size, put, get, *floor(bench, number, size)))
            kit.note(f"run {number + 1}: {found[-1]}")
    finally:
        cluster(bench, "down")
    rows = []
    for title, column in (("put: sync", 1), ("put: curls", 3), ("get: fetch", 2), ("get: curls", 4)):
        rates = [row[0] / row[column] / 1e6 for row in found]
        rows.append([title, f"{kit.median(rates):.0f}", f"{min(rates):.0f}", f"{max(rates):.0f}"])
    print(f"\n### An image of {HEAP} MiB at three Garage nodes on this host, MB/s (median, least, most of {RUNS})\n")
    kit.table(["what", "median", "least", "most"], rows)
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
