# A server and its clients in one event loop: connections that last, new ones every turn, timers, a queue, a thread
# pool, by TCP and by a unix socket. One line per turn.
import asyncio, hashlib, os, sys

turns = int(sys.argv[1]) if len(sys.argv) > 1 else 150
path = "echo.socket"


async def serve(reader, writer):
    total = 0
    while line := await reader.readline():
        total += len(line)
        writer.write(hashlib.sha256(line).hexdigest().encode() + b" %d\n" % total)
        await writer.drain()
    writer.close()


async def ask(reader, writer, line):
    writer.write(line + b"\n")
    await writer.drain()
    return (await reader.readline()).decode().strip()


def work(number):
    return sum(i * i % (number + 7) for i in range(3000))


async def main():
    tcp = await asyncio.start_server(serve, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(serve, path)
    address = tcp.sockets[0].getsockname()
    lasting = [await asyncio.open_connection(*address) for _ in range(3)]
    lasting.append(await asyncio.open_unix_connection(path))
    names = [writer.get_extra_info("sockname") for _, writer in lasting]
    loop = asyncio.get_running_loop()
    for turn in range(turns):
        line = b"turn %d " % turn + b"x" * (turn * 37 % 5000)
        answers = await asyncio.gather(*(ask(*one, line) for one in lasting))
        fresh = await (asyncio.open_connection(*address) if turn % 2 else asyncio.open_unix_connection(path))
        answers.append(await ask(*fresh, line))
        fresh[1].close()
        await fresh[1].wait_closed()
        number = await loop.run_in_executor(None, work, turn)
        assert names == [writer.get_extra_info("socket").getsockname() or "" for _, writer in lasting], names
        digest = hashlib.sha256("".join(answers).encode()).hexdigest()
        print(turn, len(answers), answers[0].split()[1], number, digest[:16], flush=True)
        await asyncio.sleep(0.01)
    for _, writer in lasting:
        writer.close()
    tcp.close()
    unix.close()


asyncio.run(main())
os.unlink(path)
print("PASS")
