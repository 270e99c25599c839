#!/usr/bin/env python3
"""Heat that spreads over a plate, with numpy; it says itself when its state is worth an image.

    holdfast run --name heat -- python3 heat.py 3000
    kill -9 PID                              # in another terminal, as `holdfast list` names it
    holdfast restart heat                    # goes on after the last step whose image was safe

Without `holdfast run`, and without the module, it runs as well. What it prints is the same either way, with all bits.
"""

import sys

import numpy

try:
    import holdfast
except ImportError:  # not installed here
    holdfast = None


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    plate = numpy.zeros((size, size))
    watched = holdfast is not None and holdfast.loaded()
    if watched:
        plate = holdfast.protect(plate)  # flushed first
        holdfast.on_restart(lambda: print("restarted", file=sys.stderr, flush=True))
    plate[0] = 100.0
    for step in range(1, steps + 1):
        around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
        plate[1:-1, 1:-1] += 0.2 * (around - 4.0 * plate[1:-1, 1:-1])
        if step % 100 == 0:
            print(step, float(plate.sum()).hex(), flush=True)
        if watched and step % 500 == 0:
            holdfast.checkpoint()


if __name__ == "__main__":
    main()
