"""Peaks and totals, which the engine counts with shortcuts, equal a plain count of every step."""

import random

import pytest

from helpers.engine import KIB, MIB, check, on_device

METRICS = ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes", "segment", "reserved_bytes")
SPLIT = ("inactive_split", "inactive_split_bytes")
SCOPES = ("all", "small_pool", "large_pool")


class PlainCount:
    """The statistics of an allocator, from the values after each step. Each value moves at most once in a step."""

    def __init__(self, alloc, metrics):
        self.alloc = alloc
        self.names = [f"{metric}.{scope}" for metric in metrics for scope in SCOPES]
        self.reset_peaks()
        self.reset_totals()

    def now(self):
        stats = self.alloc.stats()
        return {name: stats[f"{name}.current"] for name in self.names}

    def reset_peaks(self):
        self.peaks = self.last = self.now()

    def reset_totals(self):
        self.added = dict.fromkeys(self.names, 0)
        self.taken = dict.fromkeys(self.names, 0)

    def step(self):
        now = self.now()
        for name, value in now.items():
            moved = value - self.last[name]
            self.added[name] += max(moved, 0)
            self.taken[name] += max(-moved, 0)
        self.peaks = {name: max(self.peaks[name], value) for name, value in now.items()}
        self.last = now

    def agrees(self):
        stats = self.alloc.stats()
        assert {name: stats[f"{name}.peak"] for name in self.names} == self.peaks
        assert {name: stats[f"{name}.allocated"] for name in self.names} == self.added
        assert {name: stats[f"{name}.freed"] for name in self.names} == self.taken


def run_at_random(alloc, count, seed, streams=(0,)):
    chance = random.Random(seed)
    live = []
    for _ in range(600):
        kind = chance.random()
        if kind < 0.01:
            alloc.reset_peak_stats()
            count.reset_peaks()
        elif kind < 0.02:
            alloc.inspection.reset_accumulated_stats()
            count.reset_totals()
        elif live and kind < 0.45 + len(live) / 80:
            alloc.free(live.pop(chance.randrange(len(live))))
        else:
            size = chance.choice([700, 3 * KIB, 200 * KIB, 900 * KIB, 2 * MIB, 7 * MIB])
            live.append(alloc.malloc(size, chance.choice(streams)))
        count.step()
        count.agrees()
    check(alloc)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_peaks_are_the_highest_values_ever_reached(settings, seed):
    alloc = on_device(settings=settings)
    run_at_random(alloc, PlainCount(alloc, METRICS + SPLIT), seed, streams=(0, 0, 3))


def test_a_peak_over_all_is_seen_whichever_class_makes_it():
    alloc = on_device()
    for rising, falling in [(KIB, 5 * MIB), (5 * MIB, KIB)]:
        before = [alloc.malloc(falling) for _ in range(3)]
        alloc.reset_peak_stats()
        alloc.free(before.pop())
        first = alloc.malloc(rising)  # back to the earlier number: no new overall peak
        assert alloc.stats()["allocation.all.peak"] == alloc.stats()["allocation.all.current"]
        second = alloc.malloc(rising)
        stats = alloc.stats()
        assert stats["allocation.all.peak"] == stats["allocation.all.current"]
        for address in (first, second, *before):
            alloc.free(address)
        assert alloc.stats()["allocation.all.peak"] == stats["allocation.all.peak"]


def test_what_waits_for_a_stream_is_active_and_no_longer_allocated():
    alloc = on_device()
    used = alloc.malloc(KIB)
    alloc.device.launch(7)
    alloc.record_stream(used, 7)
    alloc.free(used)
    alloc.malloc(KIB)
    stats = alloc.stats()
    assert (stats["allocation.all.peak"], stats["active.all.peak"]) == (1, 2)
    assert stats["allocated_bytes.all.peak"] == KIB
