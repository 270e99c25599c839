# multiprocessing: a pool, queues, shared memory, locks, a pipe, a manager; processes made by fork, spawn or forkserver.
# One line per turn. pool.py [METHOD] [TURNS]
import hashlib, multiprocessing, sys, time
from multiprocessing import shared_memory


def work(number):
    time.sleep(0.002)
    return sum(i * i % (number + 7) for i in range(2000))


def consume(requests, answers):
    for text in iter(requests.get, None):
        answers.put(hashlib.sha256(text.encode()).hexdigest()[:16])


def add(name, lock, counter, ready, go):
    memory = shared_memory.SharedMemory(name=name)
    ready.set()
    for turn in iter(go.recv, None):
        with lock:
            memory.buf[turn % 4096] = (memory.buf[turn % 4096] + turn) % 256
            counter.value += 1
        go.send(turn)
    memory.close()


def main():
    method = sys.argv[1] if len(sys.argv) > 1 else "fork"
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 150
    context = multiprocessing.get_context(method)
    requests, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(requests, answers))
    consumer.start()
    memory = shared_memory.SharedMemory(create=True, size=4096)
    lock, counter, ready = context.Lock(), context.Value("q", 0), context.Event()
    ours, theirs = context.Pipe()
    adder = context.Process(target=add, args=(memory.name, lock, counter, ready, theirs))
    adder.start()
    ready.wait()
    with context.Pool(3) as pool, context.Manager() as manager:
        table = manager.dict()
        for turn in range(turns):
            requests.put(f"turn {turn} " + "x" * (turn * 997 % 70000))
            ours.send(turn)
            results = pool.map(work, range(turn, turn + 12))
            table[turn] = sum(results)
            assert ours.recv() == turn and counter.value == turn + 1
            assert memory.buf[turn % 4096] == turn % 256
            print(turn, sum(results), answers.get(), len(table), table[turn // 2], flush=True)
    requests.put(None)
    ours.send(None)
    for process in (consumer, adder):
        process.join()
        assert process.exitcode == 0
    memory.close()
    memory.unlink()
    print("PASS", flush=True)


if __name__ == "__main__":
    main()
