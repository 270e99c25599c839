"""What no flusher can beat, and what one without knowledge of the future reaches: an exact simulation of one epoch.

Used by benches/aickpt.py; `test_ideal.py` checks it against the closed form.

The model: at the cut all pages are dirty. The program writes them once in a given order and computes for `pace` after
each write. The flusher stores one page after the other, each takes `store`. A page may be written when it is stored, or
when there is room for a copy of it: there is room for `bound` copies, and each is free again once its page is stored.
Otherwise the program waits, and its page is the next to be stored. Stops, faults and copying cost nothing, and the
flusher has no pauses: that is what makes it ideal.

Whatever the order of the flush, page number k of the writing order (from 0) cannot be written before k + 1 - bound
pages are stored: the program is never faster than the disk once the bound is used. Storing in the order in which pages
will be written reaches this, so the clairvoyant order is the optimum, not merely a good one.
"""

from collections import deque
from dataclasses import dataclass


@dataclass
class Epoch:
    """How an epoch went: seconds by which the program was late, and the pages by how their first writes went, each in
    the order of writing."""

    delay: float
    waited: list
    copies: list
    passed: list

    wait = property(lambda self: len(self.waited))
    copied = property(lambda self: len(self.copies))
    avoided = property(lambda self: len(self.passed))


class Flusher:
    """Stores pages: the one that somebody waits for, then holders of copies (if it `copies_first`), then by `order`."""

    def __init__(self, order, copies_first):
        self.rest = deque(order)
        self.copies_first = copies_first
        self.holders = deque()
        self.stored = bytearray(len(order))
        self.holds = bytearray(len(order))
        self.used = 0

    def _first_dirty(self, queue):
        while queue and self.stored[queue[0]]:
            queue.popleft()
        return queue.popleft() if queue else None

    def take(self, waited):
        """The page to store now, or None."""
        if waited is not None:
            return waited
        if self.copies_first:
            page = self._first_dirty(self.holders)
            if page is not None:
                return page
        return self._first_dirty(self.rest)

    def finish(self, page):
        """`page` is stored."""
        self.stored[page] = 1
        if self.holds[page]:
            self.holds[page] = 0
            self.used -= 1

    def copy(self, page):
        """The program writes `page` before it is stored."""
        self.holds[page] = 1
        self.used += 1
        self.holders.append(page)


def simulate(writes, order, pace, store, bound, copies_first=True):
    """Runs one epoch.

    writes: pages in the order of their first writes; order: pages in the order of the flush, all of them; pace, store:
    seconds per page; bound: copies that may exist at once.
    """
    flusher = Flusher(order, copies_first)
    waits, copies, passed = [], [], []
    next_write = 0
    ready = 0.0  # when the program comes to its next write
    clock = 0.0  # when the flusher takes its next page
    waited = None
    while next_write < len(writes):
        page_in_store = flusher.take(waited)
        finished = clock + store if page_in_store is not None else float("inf")
        # what the program does until that page is stored
        while waited is None and next_write < len(writes) and ready < finished:
            page = writes[next_write]
            if flusher.stored[page]:
                passed.append(page)
            elif flusher.used < bound:
                flusher.copy(page)
                copies.append(page)
            else:
                waited = page
                break
            next_write += 1
            ready += pace
        if page_in_store is None:
            break
        flusher.finish(page_in_store)
        clock = finished
        if waited is not None and flusher.stored[waited]:
            waits.append(waited)
            waited = None
            next_write += 1
            ready = finished + pace
        elif waited is not None and flusher.used < bound:
            # room was made by another page: a copy will do
            flusher.copy(waited)
            copies.append(waited)
            waited = None
            next_write += 1
            ready = finished + pace
    # rounding may leave a little less than nothing
    return Epoch(max(0.0, ready - pace * len(writes)), waits, copies, passed)


def writing_order(pattern, pages):
    """The order in which benches/programs/aickpt.c writes its pages."""
    order = list(range(pages))
    if pattern == "descending":
        order.reverse()
    if pattern == "random":
        for i in range(pages - 1, 0, -1):
            j = _mix(i) % (i + 1)
            order[i], order[j] = order[j], order[i]
    return order


def _mix(n):
    mask = (1 << 64) - 1
    n = (n + 0x9E3779B97F4A7C15) & mask
    n = ((n ^ (n >> 30)) * 0xBF58476D1CE4E5B9) & mask
    n = ((n ^ (n >> 27)) * 0x94D049BB133111EB) & mask
    return n ^ (n >> 31)


def added(strategy, pattern, pages, iteration, flush, bound, epochs):
    """Ideal added time of a run in seconds: `iteration` and `flush` are seconds for the whole region.

    sync: the program stands still while the region is flushed. address: every epoch in address order. history: the
    first epoch knows nothing, so it goes by address with holders of copies first; all later ones know what will come.
    classes: each epoch stores what the one before waited for, then what it copied, then what was stored in time, each
    in the order of writing. best: knows what will come in every epoch.
    """
    if strategy == "sync":
        return flush * epochs
    writes, by_address = writing_order(pattern, pages), range(pages)
    pace, store = iteration / pages, flush / pages
    best = simulate(writes, writes, pace, store, bound).delay
    if strategy == "best":
        return best * epochs
    if strategy == "address":
        return simulate(writes, by_address, pace, store, bound, copies_first=False).delay * epochs
    if strategy == "classes":
        order, delay = by_address, 0.0
        for _ in range(epochs):
            epoch = simulate(writes, order, pace, store, bound)
            order, delay = [*epoch.waited, *epoch.copies, *epoch.passed], delay + epoch.delay
        return delay
    return simulate(writes, by_address, pace, store, bound).delay + best * (epochs - 1)
