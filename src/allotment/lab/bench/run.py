"""Measures the hot path, each figure next to the cost of the machine itself, in one run.

Absolute times differ from machine to machine and from minute to minute, so figures are ratios of two things measured in
turns wherever possible. A second thread is kept alive throughout: locks are cheaper in a process that has only one.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from allotment._allocators.caching.allocator import Allocator
from allotment.lab.bench.hot_path import CPairs, EmptyAllocator, pointer_walk_ns

CAPACITY = "sim:1024GiB"
SETTINGS = "compat:newest"  # figures must not depend on the installed PyTorch
BLOCK = 1000
FEW_LIVE = 1_000
MANY_LIVE = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure over several rounds: its median, minimum and maximum."""

    name: str
    value: float
    least: float
    most: float
    unit: str
    goal: float | None = None
    goal_is_most: bool = True
    meaning: str = ""

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.goal_is_most else self.value >= self.goal


def _figure(name: str, samples: list[float], unit: str, meaning: str, **goal: float | bool) -> Figure:
    return Figure(
        name,
        statistics.median(samples),
        min(samples),
        max(samples),
        unit,
        meaning=meaning,
        **goal,  # type: ignore[arg-type]
    )


@contextmanager
def _second_thread() -> Iterator[None]:
    """Run a second thread, which only waits."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()
        done.set()
        thread.join()


def python_pair_ns(malloc: Callable[[int], int], free: Callable[[int], object], pairs: int) -> float:
    """Return the nanoseconds of a malloc and free, called from a Python loop."""
    start = time.perf_counter_ns()
    for _ in range(pairs):
        free(malloc(BLOCK))
    return (time.perf_counter_ns() - start) / pairs


def _in_turns(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Return samples of each measure, taken in turns, so that a slow minute affects all of them."""
    samples: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for taken, measure in zip(samples, measures, strict=True):
            taken.append(measure())
    return samples


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def pair_figures(rounds: int, pairs: int, settings: str) -> list[Figure]:
    """Measure a pair from Python next to an empty pair, and through the C entry points."""
    allocator, empty = Allocator(CAPACITY, settings=settings), EmptyAllocator()
    from_c = CPairs(Allocator(CAPACITY, settings=settings))
    ours, nothing, c_pair = _in_turns(
        rounds,
        lambda: python_pair_ns(allocator.malloc, allocator.free, pairs),
        lambda: python_pair_ns(empty.malloc, empty.free, pairs),
        lambda: from_c.pair_ns(BLOCK, 10 * pairs),
    )
    return [
        _figure("pair_ns", ours, "ns", "malloc + free from Python, in the cache"),
        _figure("empty_pair_ns", nothing, "ns", "the same two calls on a compiled class that does nothing"),
        _figure("pair_ratio", _ratios(ours, nothing), "x", "one over the other", goal=2.0),
        _figure("c_pair_ns", c_pair, "ns", "malloc + free through C function pointers", goal=50.0),
    ]


def _pair_with_live(live: int, pairs: int, settings: str) -> Callable[[], float]:
    allocator = Allocator(CAPACITY, settings=settings)
    for _ in range(live):
        allocator.malloc(BLOCK)
    return lambda: python_pair_ns(allocator.malloc, allocator.free, pairs)


def growth_figures(rounds: int, pairs: int, settings: str) -> list[Figure]:
    """Measure the cost with a million live blocks over the cost with a thousand."""
    few, many = _in_turns(
        rounds, _pair_with_live(FEW_LIVE, pairs, settings), _pair_with_live(MANY_LIVE, pairs, settings)
    )
    from_c = CPairs(Allocator(CAPACITY, settings=settings))
    replace_few, replace_many, walk_few, walk_many = _in_turns(
        rounds,
        lambda: from_c.replacement_ns(FEW_LIVE, BLOCK, pairs),
        lambda: from_c.replacement_ns(MANY_LIVE, BLOCK, pairs),
        lambda: pointer_walk_ns(FEW_LIVE, pairs),
        lambda: pointer_walk_ns(MANY_LIVE, pairs),
    )
    walk_growth = _ratios(walk_many, walk_few)
    return [
        _figure("live_growth", _ratios(many, few), "x", "a pair with 1,000,000 live blocks over 1,000", goal=2.0),
        _figure(
            "replacement_growth",
            _ratios(replace_many, replace_few),
            "x",
            "replacing a random one of 1,000,000 blocks over 1,000; no more than the next line",
            goal=statistics.median(walk_growth),
        ),
        _figure("pointer_walk_growth", walk_growth, "x", "visiting a random one of as many records: cache misses"),
    ]


def scaling_figure(rounds: int, pairs: int, settings: str) -> Figure:
    """Measure two threads on two devices against one thread on one device."""
    one, other = (CPairs(Allocator(name, settings=settings)) for name in (CAPACITY, CAPACITY + "#1"))

    def together() -> float:
        start_together = threading.Barrier(3)

        def work(pairs_of: CPairs) -> None:
            start_together.wait()
            pairs_of.pair_ns(BLOCK, pairs)

        threads = [threading.Thread(target=work, args=(each,)) for each in (one, other)]
        for thread in threads:
            thread.start()
        start_together.wait()
        start = time.perf_counter_ns()
        for thread in threads:
            thread.join()
        return (time.perf_counter_ns() - start) / pairs

    alone, both = _in_turns(rounds, lambda: one.pair_ns(BLOCK, pairs), together)
    return _figure(
        "two_device_scaling",
        [2 * a / b for a, b in zip(alone, both, strict=True)],
        "x",
        "two threads on two devices over one on one, pairs a second",
        goal=1.6,
        goal_is_most=False,
    )


def run(rounds: int = 7, pairs: int = 200_000, settings: str = SETTINGS) -> list[Figure]:
    """Return all figures of the hot path; our allocators use `settings`. Raises SettingsError."""
    with _second_thread():
        return [
            *pair_figures(rounds, pairs, settings),
            *growth_figures(rounds, pairs, settings),
            replay_figure(rounds),
            scaling_figure(rounds, 10 * pairs, settings),
            *peer_figures(rounds, pairs // 10),
        ]


def replay_figure(rounds: int) -> Figure:
    """Measure the trace entries of the sample snapshot replayed per second on one core, without comparison or
    loading."""
    from allotment.lab.replay.run import sample_entries_per_second

    return _figure(
        "replay_events_per_s",
        [sample_entries_per_second() for _ in range(rounds)],
        "1/s",
        "trace entries of a recorded history, on the simulated device",
        goal=10e6,
        goal_is_most=False,
    )


def peer_figures(rounds: int, pairs: int) -> list[Figure]:
    """Measure the same pair with every peer that is installed and has a device."""
    from allotment.lab.bench.peers import installed_peers

    figures = []
    for peer in installed_peers():
        samples = [python_pair_ns(peer.malloc, peer.free, pairs) for _ in range(rounds)]
        figures.append(_figure(f"{peer.name}_pair_ns", samples, "ns", f"malloc + free from Python in {peer.title}"))
    return figures
