"""In a container: `inside.py FOLDER ROUNDS`. Writes files into a folder that only the container has, and reads them
again; what the container has of the host stays there, too. What is sent in one round is received in the next."""

import mmap
import os
import socket
import sys
import time

folder, rounds = sys.argv[1], int(sys.argv[2])
# An image may be of a moment before this, and be restarted after lines were written.
open(os.path.join(folder, "log"), "w").close()
log = open(os.path.join(folder, "log"), "a+")
words = open(os.path.join(folder, "words"), "w+b")
words.truncate(8192)
shared = mmap.mmap(words.fileno(), 8192)
root, here = os.stat("/").st_dev, os.stat(folder).st_dev
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
other, _ = server.accept()
one.sendall(b"-1")
total = 0
for number in range(rounds):
    log.write(f"{number}\n")
    log.flush()
    assert other.recv(20) == b"%d" % (number - 1)
    one.sendall(b"%d" % number)
    shared[number % 8192] = number % 256
    with open(os.path.join(folder, f"file{number % 7}"), "w+") as file:
        file.write(str(total))
        total = (total * 31 + os.fstat(log.fileno()).st_size) % 1_000_003
        file.seek(0)
        total += len(file.read())
    names = sorted(os.listdir(folder))
    assert len(names) >= min(number + 1, 7) + 2, names
    assert (os.stat("/").st_dev == os.stat(folder).st_dev) == (root == here)
    assert os.stat("/usr/bin/env").st_size > 0
    if number % 10 == 0:
        print(number, total, flush=True)
    time.sleep(0.01)
log.seek(0)
assert log.read().split() == [str(number) for number in range(rounds)]
with open(words.name, "rb") as file:
    assert file.read() == bytes(shared)
print(total)
