"""Training that is checkpointed as it is: `holdfast run --name train --every 10m -- python3 train.py`.

Nothing in it knows of Holdfast but two lines, without which it is checkpointed, too: when an epoch is over, little
changes, and an image is taken then rather than in the middle.
"""

import random
import sys

try:
    import holdfast
except ImportError:
    holdfast = None

random.seed(1)
weights = [0.0] * 64
data = [[random.random() for _ in weights] for _ in range(100)]
wanted = [sum(row) + 0.5 * row[0] for row in data]

for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
    loss = 0.0
    for row, want in zip(data, wanted):
        error = sum(w * x for w, x in zip(weights, row)) - want
        weights = [w - 0.005 * error * x for w, x in zip(weights, row)]
        loss += error * error
    print(f"epoch {epoch}: {loss:.6f}", flush=True)
    if holdfast and holdfast.loaded() and epoch % 50 == 49:
        holdfast.checkpoint()
