"""What a lower tier that is down, slow, full or refuses costs the program; `make bench-tiers`.

A lattice code computes for a while under `holdfast run --every`, by turns: without a lower tier, and with one whose
server is not there, lets 1 MB/s through, has no space, takes no credentials. The server is a thread of a process of its
own here that answers as S3 does. Printed: the median of the program's own time for its steps, beside that without a
lower tier in the same round; images committed; images that the tier has and that wait for it; its last error. At the
end of a run nothing may be lost: every image that `--keep` leaves or the tier waits for is verified.

Environment, all optional: ROUNDS=5, STEPS=120, MIB=128 (size of the fields), EVERY=2s, ONLY="down full" (some of them),
NICE as kit.py says.
"""

import http.server
import os
import socket
import sys
import time

import kit
import object_server

ROUNDS = int(os.environ.get("ROUNDS", "5"))
STEPS = os.environ.get("STEPS", "120")
MIB = os.environ.get("MIB", "128")
EVERY = os.environ.get("EVERY", "2s")
TARGET = 1.01
KINDS = ["none", "down", "slow", "full", "refusing"]
RATE = 1_000_000


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the kind of tier, which is the bucket's name."""

    protocol_version = "HTTP/1.1"
    objects = {}

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def kind(self):
        return self.path.split("/")[1].split("?")[0]

    def read(self):
        """The body, at the rate of a slow server."""
        left, parts = int(self.headers.get("Content-Length", "0")), []
        while left:
            parts.append(self.rfile.read(min(left, 65536)))
            left -= len(parts[-1])
            if self.kind() == "slow":
                time.sleep(len(parts[-1]) / RATE)
        return b"".join(parts)

    def do_PUT(self):
        body = self.read()
        if self.kind() == "refusing":
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if self.kind() == "full":
            return self.answer(507, b"<Error><Code>XMinioStorageFull</Code></Error>")
        key = self.path.split("?")[0]
        if "partNumber=" not in self.path:
            if "If-None-Match" in self.headers and key in self.objects:
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.objects[key] = body
        return self.answer(200, ETag='"x"')

    def do_POST(self):
        self.read()
        if self.kind() == "refusing":
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if "uploads" in self.path:
            key = self.path.split("?")[0]
            name = "InitiateMultipartUploadResult"
            text = f"<{name}><Key>{key}</Key><UploadId>1</UploadId></{name}>"
        else:
            text = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        return self.answer(200, text.encode())

    def do_GET(self):
        if self.kind() == "refusing":
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if "list-type" in self.path:
            return self.answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET

    def do_DELETE(self):
        self.answer(204)

    def log_message(self, *_):
        pass


def free_port():
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(bench, program, kind, port):
    """One run; what it took and left."""
    port = free_port() if kind == "down" else port
    environment = object_server.environment(port)
    options = ["--every", EVERY, "--keep", "2"]
    if kind != "none":
        options += ["--tier", f"s3://{kind}/images"]
    job = bench.start(options, [program, MIB, STEPS], environment)
    seconds = float(job.wait_line("loop").split()[1])
    tier = (job.status().get("tiers") or [{}])[0]
    job.finish()
    images = [shown["image"]["epoch"] for shown in job.images()]
    for number in images:
        bench.holdfast("verify", f"{job.name}@{number}")
    lost = [number for number in tier.get("waiting", []) if number not in images]
    job.remove()
    error = (tier.get("error") or "-").replace("|", " ")
    return seconds, max(images), len(tier.get("versions", [])), len(tier.get("waiting", [])), lost, error


def main():
    bench = kit.Bench()
    program = bench.compile("lattice")
    port, server = object_server.serve(Handler, nice=10)
    kinds = ["none", *[kind for kind in KINDS[1:] if kind in os.environ.get("ONLY", " ".join(KINDS)).split()]]
    runs = {kind: [] for kind in kinds}
    try:
        for number in range(ROUNDS):
            # By turns, from another one on in each round.
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                runs[kind].append(run(bench, program, kind, port))
                print(f"round {number + 1}, {kind}: {runs[kind][-1][0]:.2f} s", file=sys.stderr)
    finally:
        os.kill(server, 9)
    rows = []
    for kind, found in runs.items():
        beside = [one[0] / none[0] for one, none in zip(found, runs["none"])]
        last = found[-1]
        rows.append(
            [
                kind,
                f"{kit.median(one[0] for one in found):.2f} s",
                f"{kit.median(beside):.3f}",
                last[1],
                last[2],
                last[3],
                "nothing" if not any(one[4] for one in found) else "images",
                last[5][:70],
            ]
        )
    kit.table(["lower tier", "time", "beside none", "images", "on the tier", "wait", "lost", "last error"], rows)
    print(f"\nwanted: at most {TARGET} beside none, nothing lost; {ROUNDS} rounds, {MIB} MiB, an image every {EVERY}")


if __name__ == "__main__":
    main()
