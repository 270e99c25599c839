# A redis server and its clients in one job: this script starts the server, two more processes and a pipeline of
# requests; the server forks to save. One line per turn. redis_client.py [TURNS]
import os, socket, subprocess, sys, time
from ports import free_port


class Client:
    def __init__(self, address):
        family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
        self.socket = socket.socket(family)
        self.socket.connect(address)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))

    def answer(self):
        line = self.file.readline().strip()
        kind, rest = line[:1], line[1:]
        assert kind in (b"+", b":", b"$", b"*"), line
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return rest if kind == b"+" else int(rest)

    def ask(self, *words):
        self.send(*words)
        return self.answer()


def connect(address, server=None):
    """Waits for the server, as long as it lives: how long it takes to begin says nothing."""
    while server is None or server.poll() is None:
        try:
            return Client(address)
        except OSError:
            time.sleep(0.01)
    raise SystemExit(f"no server at {address}: it has ended with {server.returncode}")


def increment(port):
    """A client that lives in a process of its own; it adds until there is the key `enough`."""
    client = connect(("127.0.0.1", port))
    count = 0
    while client.ask("GET", "enough") is None:
        client.ask("INCR", f"count:{os.getpid()}")
        count += 1
        time.sleep(0.002)
    assert int(client.ask("GET", f"count:{os.getpid()}") or 0) == count
    os._exit(0)


def save(client):
    """A save in the background: a child of the server writes the file."""
    before = client.ask("LASTSAVE")
    while time.time() < before + 1.001:
        time.sleep(0.05)
    assert client.ask("BGSAVE").startswith(b"Background")
    while client.ask("LASTSAVE") == before:
        time.sleep(0.01)
    assert b"rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence")


def main(turns):
    if os.path.exists("dump.rdb"):
        os.unlink("dump.rdb")
    port = free_port()
    line = f"redis-server --port {port} --bind 127.0.0.1 --unixsocket redis.socket --appendonly no --loglevel warning"
    server = subprocess.Popen([*line.split(), "--save", ""], stdout=subprocess.DEVNULL)
    client, local = connect(("127.0.0.1", port), server), connect("redis.socket", server)
    children = [subprocess.Popen([sys.executable, __file__, "increment", str(port)]) for _ in range(2)]
    for turn in range(turns):
        for i in range(50):
            client.send("RPUSH", "list", f"{turn}:{i}:" + "x" * (turn * 37 % 500))
        time.sleep(0.015)  # requests and answers are under way
        lengths = [client.answer() for _ in range(50)]
        assert lengths == list(range(turn * 50 + 1, turn * 50 + 51)), lengths
        assert local.ask("LINDEX", "list", turn * 50 + 7).startswith(b"%d:7:" % turn)
        if turn in (turns // 3, 2 * turns // 3):
            save(local)
        print(turn, lengths[-1], local.ask("INCRBY", "sum", turn), flush=True)
    client.ask("SET", "enough", "yes")
    assert [child.wait() for child in children] == [0, 0]
    client.send("SHUTDOWN", "NOSAVE")
    assert server.wait() == 0
    print("PASS", flush=True)


if sys.argv[1:2] == ["increment"]:
    increment(int(sys.argv[2]))
main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
