"""sums.py ROUNDS SCHEDULER: a client of Dask, which gives work to whoever is there, prints each sum, and ends all."""
import sys

from distributed import Client


def work(number):
    return sum((number * i) % 97 for i in range(20_000))


client = Client(sys.argv[2], timeout=120)
client.wait_for_workers(2)
for step in range(1, int(sys.argv[1]) + 1):
    futures = client.map(work, range(step * 10, step * 10 + 10), pure=False)
    print(f"round {step}: {sum(client.gather(futures))}", flush=True)
client.shutdown()
