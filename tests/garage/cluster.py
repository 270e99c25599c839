#!/usr/bin/python3
"""A cluster of three Garage nodes on this host, for tests of the remote tier: each node has an address of its own
(127.0.0.1 to 127.0.0.3), all the same ports; everything is kept three times, so one node may be missing.

    up [FOLDER]        builds Garage (once: it is kept in ~/.cache/holdfast), starts a cluster with a key and a bucket,
                       prints the environment that `holdfast --tier s3://holdfast/PREFIX` needs
    down [FOLDER]      ends the nodes and removes FOLDER
    kill FOLDER N      kill -9 of node N
    start FOLDER N     starts it again, and waits until all three know each other
    build              only builds; prints the path of the program

Called by people through `up` and `down` beside it, by tests/tests/e2e/garage.rs, and by `make garage`.
HOLDFAST_GARAGE names a program that is there already. HOLDFAST_GARAGE_FSYNC=true: as for real use (docs/remote.md).
Every wait has an end. FOLDER has keys in it and is nobody else's; its nodes are those whose process id it has.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path

VERSION = "2.5.0"
# What a cluster on one host needs: no metrics, no key-value interface, one database.
FEATURES = "bundled-libs,lmdb"
NODES = (1, 2, 3)
BUCKET = "holdfast"
REGION = "garage"
S3_PORT = 3900
# For what a node does in a second, on a machine with other work.
LIMIT = 120.0


class Failed(Exception):
    """What went wrong, for people."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "holdfast" / f"garage-{VERSION}"


def build() -> Path:
    """The program; compiled from the registry where it is not there yet."""
    if named := os.environ.get("HOLDFAST_GARAGE"):
        return Path(named)
    program = cache() / "bin" / "garage"
    if program.exists():
        return program
    say(f"building Garage {VERSION} into {cache()}: once, 10 to 40 minutes on two processors")
    # Made to be built fast: a test moves a few hundred megabytes.
    fast = {"LTO": "off", "OPT_LEVEL": "1", "CODEGEN_UNITS": "64", "DEBUG": "0", "STRIP": "symbols"}
    env = os.environ | {f"CARGO_PROFILE_RELEASE_{key}": value for key, value in fast.items()}
    command = ["cargo", "install", "--locked", "--root", str(cache()), "--target-dir", str(cache() / "build")]
    command += ["--version", VERSION, "--no-default-features", "--features", FEATURES, "garage"]
    # Not in the folder of the caller, whose settings of cargo are not meant.
    cache().mkdir(parents=True, exist_ok=True)
    if subprocess.run(command, cwd=cache(), env=env, stdout=sys.stderr).returncode != 0:
        raise Failed("Garage could not be built; HOLDFAST_GARAGE=PATH names one that is there already")
    shutil.rmtree(cache() / "build", ignore_errors=True)
    return program


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def address(node: int) -> str:
    return f"127.0.0.{node}"


def is_free(port: int) -> bool:
    for node in NODES:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address(node), port))
            except OSError:
                return False
    return True


def two_ports() -> tuple[int, int]:
    """Ports that are free at all addresses; the usual ones where they are."""
    for port in [S3_PORT] + [20000 + 2 * secrets.randbelow(5000) for _ in range(100)]:
        if is_free(port) and is_free(port + 1):
            return port, port + 1
    raise Failed("no free ports on 127.0.0.1 to 127.0.0.3")


class Cluster:
    """See the head of the file."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def program(self) -> Path:
        return build()

    def node(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def write_config(self, number: int, ports: tuple[int, int], secret: str) -> None:
        node, (s3_port, rpc_port) = self.node(number), ports
        node.mkdir(mode=0o700)
        fsync = "true" if os.environ.get("HOLDFAST_GARAGE_FSYNC") == "true" else "false"
        config = node / "garage.toml"
        config.touch(mode=0o600)
        config.write_text(f"""\
metadata_dir = "{node}/meta"
data_dir = "{node}/data"
db_engine = "lmdb"
lmdb_map_size = "4G"
metadata_fsync = {fsync}
data_fsync = {fsync}
replication_factor = 3
rpc_bind_addr = "{address(number)}:{rpc_port}"
rpc_public_addr = "{address(number)}:{rpc_port}"
rpc_secret = "{secret}"

[s3_api]
s3_region = "{REGION}"
api_bind_addr = "{address(number)}:{s3_port}"
""")

    def start(self, number: int) -> None:
        node = self.node(number)
        with open(node / "log", "ab") as log:
            server = subprocess.Popen(
                [self.program, "-c", str(node / "garage.toml"), "server"],
                cwd=node, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        (node / "pid").write_text(str(server.pid))

    def pid(self, number: int) -> int | None:
        """Of a node that runs: a number that another process has got since does not count."""
        try:
            pid = int((self.node(number) / "pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if str(self.node(number) / "garage.toml").encode() in words else None

    def kill(self, number: int) -> None:
        pid = self.pid(number)
        if pid is None:
            raise Failed(f"node {number} does not run")
        os.kill(pid, signal.SIGKILL)
        self.until(f"the end of node {number}", lambda: self.pid(number) is None)

    def until(self, what: str, done) -> None:
        end = time.monotonic() + LIMIT
        while not done():
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {LIMIT:.0f} s; {self.folder}/node-*/log may say why")
            time.sleep(0.05)

    def ask(self, number: int, endpoint: str, payload=None):
        """The administration of a node; None where it does not answer yet."""
        config = str(self.node(number) / "garage.toml")
        words = [self.program, "-c", config, "json-api", endpoint]
        words += [] if payload is None else [json.dumps(payload)]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def told(self, endpoint: str, payload=None):
        """The same, where there must be an answer."""
        answers: list = []

        def answered() -> bool:
            answers.append(self.ask(1, endpoint, payload))
            return answers[-1] is not None

        self.until(endpoint, answered)
        return answers[-1]

    def id_of(self, number: int) -> str:
        config = str(self.node(number) / "garage.toml")
        words = [self.program, "-c", config, "node", "id", "--quiet"]
        found: list[str] = []

        def known() -> bool:
            if self.pid(number) is None:
                raise Failed(f"node {number} has ended; see {self.node(number)}/log")
            found.append(subprocess.run(words, capture_output=True, text=True, timeout=LIMIT).stdout.strip())
            return "@" in found[-1]

        self.until(f"the id of node {number}", known)
        return found[-1]

    def is_whole(self) -> bool:
        """Whether each node is connected to the others."""
        health = [self.ask(number, "GetClusterHealth") for number in NODES]
        return all(one is not None and one["status"] == "healthy" and one["storageNodesUp"] == len(NODES)
                   for one in health)

    def up(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True)
        ports, secret = two_ports(), secrets.token_hex(32)
        for number in NODES:
            self.write_config(number, ports, secret)
            self.start(number)
        ids = [self.id_of(number) for number in NODES]
        self.until("the nodes' connections", lambda: all(
            one["success"] for one in self.told("ConnectClusterNodes", ids[1:])))
        roles = [{"id": name.split("@")[0], "zone": f"zone{number}", "capacity": 10**11, "tags": []}
                 for number, name in zip(NODES, ids)]
        self.told("UpdateClusterLayout", {"roles": roles})
        self.told("ApplyClusterLayout", {"version": 1})
        self.until("a healthy cluster", self.is_whole)
        key = self.told("CreateKey", {"name": BUCKET})
        bucket = self.told("CreateBucket", {"globalAlias": BUCKET})
        self.told("AllowBucketKey", {
            "bucketId": bucket["id"], "accessKeyId": key["accessKeyId"],
            "permissions": {"read": True, "write": True, "owner": False},
        })
        settings = {
            "AWS_ACCESS_KEY_ID": key["accessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["secretAccessKey"],
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": f"http://{address(1)}:{ports[0]}",
            "AWS_ALLOW_HTTP": "true",
            "HOLDFAST_TEST_TIER": f"s3://{BUCKET}/test",
        }
        text = "".join(f"export {name}={value}\n" for name, value in settings.items())
        env = self.folder / "env"
        env.touch(mode=0o600)
        env.write_text(text)
        print(text, end="")

    def down(self) -> None:
        for number in NODES:
            if self.pid(number) is not None:
                self.kill(number)
        shutil.rmtree(self.folder, ignore_errors=True)


def run(words: list[str]) -> None:
    what, rest = (words[0], words[1:]) if words else ("", [])
    default = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"holdfast-garage-{os.getuid()}"
    if what == "build" and not rest:
        print(build())
        return
    if what not in ("up", "down", "kill", "start") or len(rest) > 2 or (what in ("kill", "start")) != (len(rest) == 2):
        raise Failed(__doc__)
    folder = Path(rest[0]).absolute() if rest else default
    if what == "up":
        if folder.exists():
            raise Failed(f"{folder} is there already: `down` ends a cluster")
        cluster = Cluster(folder)
        try:
            cluster.up()
        except BaseException:
            for log in sorted(folder.glob("node-*/log")):
                say(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}")
            cluster.down()
            raise
        return
    cluster = Cluster(folder)
    if what == "down":
        cluster.down()
        return
    number = int(rest[1]) if rest[1] in map(str, NODES) else 0
    if number == 0:
        raise Failed(f"{rest[1]}: nodes are 1, 2 and 3")
    if what == "kill":
        cluster.kill(number)
    else:
        cluster.start(number)
        cluster.until("a healthy cluster", cluster.is_whole)


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except (Failed, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"garage: {error}")
