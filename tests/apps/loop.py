# Objects, dictionaries, strings, big integers, generators, a thread and a timer. One line per turn.
import hashlib, sys, threading, time

turns = int(sys.argv[1]) if len(sys.argv) > 1 else 170
ticks = []
stop = threading.Event()


def ticker():
    while not stop.wait(0.01):
        ticks.append(len(ticks))


def fibonacci():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b


thread = threading.Thread(target=ticker)
thread.start()
numbers = fibonacci()
table = {}
for turn in range(turns):
    for i in range(8000):
        table[(turn * 7919 + i * 104729) % 50021] = str(turn ^ i)
    for _ in range(20):
        number = next(numbers)
    text = ",".join(f"{k}:{v}" for k, v in sorted(table.items())[::17])
    print(turn, len(table), number % 1000003, hashlib.sha256(text.encode()).hexdigest(), flush=True)
    time.sleep(0.005)
stop.set()
thread.join()
assert ticks == list(range(len(ticks)))
print("PASS", flush=True)
