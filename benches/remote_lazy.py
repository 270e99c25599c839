"""How soon a program is back whose image lies behind a link of 100 MB/s; `make bench-remote-lazy`. Prints a table.

A heap of noise (programs/dirtier.c) is checkpointed to an object server (a process of its own here that keeps objects
in memory and answers as S3 does); then host and store are lost, and `holdfast restart --tier` brings it back on an
empty store, lazily and eagerly by turns. The server then lets RATE MB/s through, all answers together. The program is
asked for the sum of a hundredth of the heap, pieces of 1 MiB here and there (`some`), and, when all was read ahead, for
the sum of all words (`sum`), twice. `--lazy` knows nothing of what will be touched; `again` is the restart after that,
which does.

  first line     from the start of `holdfast restart` to the first line that the program prints (nothing was touched)
  1 %            to the line that it prints when it has read a hundredth of its heap
  requests       what the program asked for that had not been read ahead, while it was read ahead
  all            to the sum of all words; `sum`: seconds of the second one, beside that before the checkpoint
  floor          bytes of the image over RATE

Environment, all optional: HEAP=4096 (MiB), RATE=100, RUNS=2. Needs three times HEAP of memory.
"""

import http.server
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse

import kit
import object_server

HEAP = int(os.environ.get("HEAP", "4096"))
RATE = float(os.environ.get("RATE", "100")) * 1e6
RUNS = int(os.environ.get("RUNS", "2"))
WAYS = ("--lazy", "again", "--eager")
PIECE = 64 << 10


class Link:
    """Lets so many bytes a second through; the first answer of a quiet time at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.free_at = 0.0

    def take(self, length):
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + length / RATE
            wait = self.free_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)


LINK = Link()


class Handler(http.server.BaseHTTPRequestHandler):
    """Objects in memory, by key; parts of uploads until they are completed."""

    protocol_version = "HTTP/1.1"
    objects, parts = {}, {}

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        view = memoryview(body)
        for at in range(0, len(view), PIECE):
            LINK.take(len(view[at : at + PIECE]))
            self.wfile.write(view[at : at + PIECE])

    def wanted(self):
        """Key and query."""
        url = urllib.parse.urlsplit(self.path)
        return urllib.parse.unquote(url.path), urllib.parse.parse_qs(url.query, keep_blank_values=True)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def do_PUT(self):
        (key, query), body = self.wanted(), self.body()
        if "partNumber" in query:
            self.parts[key, int(query["partNumber"][0])] = body
        elif "If-None-Match" in self.headers and key in self.objects:
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self.objects[key] = body
        return self.answer(200, ETag='"x"')

    def do_POST(self):
        (key, query), _ = self.wanted(), self.body()
        if "uploads" in query:
            name = "InitiateMultipartUploadResult"
            return self.answer(200, f"<{name}><Key>{key}</Key><UploadId>1</UploadId></{name}>".encode())
        own = sorted(part for part in self.parts if part[0] == key)
        self.objects[key] = b"".join(self.parts.pop(part) for part in own)
        return self.answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def listing(self, bucket, query):
        """Objects below a prefix, and folders where a delimiter is given."""
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        found, folders = [], set()
        for name, body in sorted(self.objects.items()):
            own = name.removeprefix(f"/{bucket}/")
            rest = own.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            elif own.startswith(prefix):
                stamp = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag>"
                found.append(f"<Contents><Key>{own}</Key><Size>{len(body)}</Size>{stamp}</Contents>")
        found += [f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders)]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>"

    def do_GET(self):
        key, query = self.wanted()
        if "list-type" in query:
            return self.answer(200, self.listing(key.strip("/"), query).encode())
        body = self.objects.get(key)
        if body is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        stamp = {"ETag": '"x"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if span is None:
            return self.answer(200, body, **stamp)
        first, last = int(span.group(1)), min(int(span.group(2)), len(body) - 1)
        text = f"bytes {first}-{last}/{len(body)}"
        return self.answer(206, memoryview(body)[first : last + 1], Content_Range=text, **stamp)

    do_HEAD = do_GET

    def do_DELETE(self):
        self.objects.pop(self.wanted()[0], None)
        self.answer(204)

    def log_message(self, *_):
        pass


def requests(bench, job, patience=600):
    """What the page server served while it read ahead; waits until it has."""
    path = os.path.join(bench.store, job.name, "agent.log")
    for _ in range(patience * 10):
        with open(path, errors="replace") as log:
            found = re.findall(r"bytes read ahead in .*; meanwhile (\d+) requests", log.read())
        if found:
            return int(found[-1])
        time.sleep(0.1)
    raise kit.Trouble(f"{job.name} is not read ahead")


def restart(bench, job, tier, way, sums):
    """Seconds until the first line, a hundredth, all; of the second sum; requests of the program."""
    offset = job.offset
    os.truncate(job.output, offset)  # as it was when the image was made
    begun = time.monotonic()
    with open(job.errors, "wb") as errors, open(job.output, "ab") as out:
        job.front = subprocess.Popen(
            [kit.HOLDFAST, "restart", "--tier", tier, "--lazy" if way == "again" else way, job.name],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            cwd=bench.work,
            env=bench.environment,
        )
    taken, asked = [], 0
    for question, expected in (("gap", None), ("some", sums[0]), ("sum", sums[1])):
        if question == "sum" and way != "--eager":
            asked = requests(bench, job)
        answer = job.ask(question)
        taken.append(time.monotonic() - begun)
        if expected not in (None, answer):
            raise kit.Trouble(f"{job.name} restarted {way} has another memory")
    begun = time.monotonic()
    job.ask("sum")
    taken.append(time.monotonic() - begun)
    job.say("end")
    job.front.wait()
    job.wait_end()
    job.offset = offset
    log = os.path.join(bench.store, job.name, "agent.log")
    if way == "--lazy":
        os.unlink(log)  # what was touched stays
    else:
        shutil.rmtree(os.path.dirname(log))
    return [*taken, asked]


def main():
    """The image, and all restarts by turns."""
    bench, load = kit.Bench(), kit.LoadWatch()
    program, (port, server) = bench.compile("dirtier"), object_server.serve(Handler)
    bench.environment |= object_server.environment(port)
    found = {way: [] for way in WAYS}
    try:
        tier = "s3://bench/images"
        job = bench.start(["--tier", tier], [program, str(HEAP), "plain"])
        job.wait_line("ready")
        sums = [job.ask("some"), job.ask("sum")]
        begun = time.monotonic()
        job.ask("sum")
        before = time.monotonic() - begun
        job.checkpoint()
        bench.holdfast("sync", job.name, patience=1800)
        job.kill()
        job.wait_end()
        size = os.path.getsize  # of the segments, as the store has them
        folder = os.path.join(bench.store, job.name)
        image = sum(size(os.path.join(folder, name)) for name in os.listdir(folder) if name.startswith("segment-"))
        shutil.rmtree(folder)
        for number in range(RUNS):
            for way in WAYS:
                found[way].append(restart(bench, job, tier, way, sums))
                kit.note(f"run {number + 1}, {way}: {found[way][-1]}")
    finally:
        os.kill(server, signal.SIGKILL)
    rows = []
    for way, runs in found.items():
        columns = [kit.median(taken[at] for taken in runs) for at in range(5)]
        rows.append([way, *(f"{value:.2f}" for value in columns[:4]), f"{columns[4]:.0f}"])
    print(f"\n### {HEAP} MiB from a remote tier of {RATE / 1e6:.0f} MB/s, s (median of {RUNS})\n")
    kit.table(["way", "first line", "1 %", "all", "sum", "requests"], rows)
    print(f"\nThe bytes of the image over the rate: {image / RATE:.1f} s; a sum before the checkpoint: {before:.2f} s.")
    print(f"\n{kit.machine(bench, load)}")


if __name__ == "__main__":
    main()
