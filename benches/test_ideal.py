"""The simulation against the closed form, and against what must hold for any order. Run by `make unit`."""

import random
import unittest

import ideal


class Ideal(unittest.TestCase):
    def test_the_clairvoyant_order_reaches_the_bound_that_no_order_can_beat(self):
        for pattern in ("ascending", "random", "descending"):
            writes = ideal.writing_order(pattern, 512)
            for pace in (0.25, 0.5, 0.9, 1.0, 2.0):
                for bound in (0, 1, 32, 512):
                    delay = ideal.simulate(writes, writes, pace, 1.0, bound).delay
                    # page k not before k + 1 - bound pages are stored, and `pace` after each write
                    ready = 0.0
                    for k in range(512):
                        ready = max(ready, k + 1.0 - bound) + pace
                    self.assertAlmostEqual(delay, ready - 512 * pace, places=6)
                    other = ideal.simulate(writes, range(512), pace, 1.0, bound).delay
                    self.assertGreaterEqual(other, delay - 1e-6)

    def test_no_order_is_better_and_every_page_is_counted_once(self):
        writes = ideal.writing_order("random", 64)
        best = ideal.simulate(writes, writes, 0.3, 1.0, 5).delay
        for seed in range(200):
            order = list(range(64))
            random.Random(seed).shuffle(order)
            for copies_first in (False, True):
                epoch = ideal.simulate(writes, order, 0.3, 1.0, 5, copies_first)
                self.assertGreaterEqual(epoch.delay, best - 1e-6)
                self.assertEqual(epoch.wait + epoch.copied + epoch.avoided, 64)

    def test_with_room_for_all_nobody_waits(self):
        writes = ideal.writing_order("descending", 100)
        epoch = ideal.simulate(writes, range(100), 0.1, 1.0, 100)
        self.assertEqual(epoch.wait, 0)
        self.assertAlmostEqual(epoch.delay, 0.0)

    def test_without_room_ascending_is_as_fast_as_the_disk(self):
        writes = ideal.writing_order("ascending", 100)
        epoch = ideal.simulate(writes, range(100), 0.0, 1.0, 0)
        self.assertAlmostEqual(epoch.delay, 100.0)
        self.assertEqual(epoch.wait, 100)

    def test_classes_are_better_than_addresses_and_no_better_than_what_will_come(self):
        for pattern in ("random", "descending"):
            for pace in (0.5, 1.0):
                best, classes, address = (
                    ideal.added(order, pattern, 512, pace, 1.0, 32, 3) for order in ("best", "classes", "address")
                )
                self.assertLessEqual(best, classes + 1e-9)
                self.assertLess(classes, address)

    def test_a_slow_program_is_not_delayed_by_a_known_order(self):
        self.assertLess(ideal.added("best", "random", 256, 2.0, 1.0, 16, 3), 1e-9)
        self.assertGreater(ideal.added("address", "random", 256, 0.5, 1.0, 16, 3), 0.5)


if __name__ == "__main__":
    unittest.main()
