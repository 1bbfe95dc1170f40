"""The cost of a framework's arrays on our allocator, next to the framework's own: medians and spread of one run.

    python benchmarks/gpu/adapters.py [--out FILE]

Each measure is taken with the framework's own memory and with ours in turns, so that a slow moment affects both:

    cupy.empty                  an array of 1,000 bytes is made and let go, again and again
    cupy.empty, replacement     one of 256 live arrays, chosen at random, is let go and another size is made
    cupy sum                    x + y of 1,000 elements, with its kernel
    pinned memory               4 KiB of pinned host memory is taken and let go
    numba device_array          an array of 1,000 bytes is made and let go
    cuda.core allocate          a buffer of 1,000 bytes is allocated and closed

The goal is that `cupy.empty` is not slower than on CuPy's own pool. Exits with 1 if it is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from latency import BLOCK, LIVE, SIZES, Figure, in_quiet

from allotment import Allocator
from allotment._devices.cuda.device import CudaDevice

PINNED = 4096
GOAL = "cupy.empty"
RATIO = "ours / theirs"

Setting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Measure:
    """`repeat(count, given)` repeats an operation `count` times with what `native` or `ours` sets up and yields."""

    name: str
    peer: str
    native: Setting
    ours: Setting
    repeat: Callable[[int, Any], None]

    def sample(self, setting: Setting, count: int) -> float:
        with setting() as given:
            self.repeat(min(count, 100), given)
            start = time.perf_counter_ns()
            self.repeat(count, given)
            return (time.perf_counter_ns() - start) / count


@cache
def plan(count: int) -> list[tuple[int, int]]:
    """Every place is filled once, then chosen at random."""
    choose = random.Random(1)
    places = [*range(min(count, LIVE)), *(choose.randrange(LIVE) for _ in range(count - LIVE))]
    return [(place, choose.choice(SIZES)) for place in places]


@contextmanager
def installed(adapter: Any, allocator: Allocator) -> Iterator[None]:
    adapter.install(allocator)
    try:
        yield
    finally:
        adapter.uninstall()


# The frameworks.


def cupy_measures() -> Iterator[Measure]:
    cupy, adapter = import_module("cupy"), import_module("allotment.cupy")
    pool, pinned_pool = cupy.cuda.MemoryPool(), cupy.cuda.PinnedMemoryPool()
    allocator = Allocator("cuda:0", settings="compat:2.11")
    peer = f"CuPy {cupy.__version__}, MemoryPool"

    def native() -> AbstractContextManager[Any]:
        return cupy.cuda.using_allocator(pool.malloc)

    def ours() -> AbstractContextManager[Any]:
        return adapter.using(allocator)

    def pair(count: int, _: Any) -> None:
        empty, kind = cupy.empty, cupy.uint8
        for _ in range(count):
            empty(BLOCK, kind)

    def replacement(count: int, _: Any) -> None:
        empty, kind = cupy.empty, cupy.uint8
        live: list[Any] = [None] * LIVE
        for place, size in plan(count):
            live[place] = empty(size, kind)

    def total(count: int, _: Any) -> None:
        x = cupy.ones(1000, cupy.float32)
        for _ in range(count):
            x + x
        cupy.cuda.get_current_stream().synchronize()

    yield Measure(GOAL, peer, native, ours, pair)
    yield Measure("cupy.empty, replacement", peer, native, ours, replacement)
    yield Measure("cupy sum", peer, native, ours, total)

    @contextmanager
    def native_pinned() -> Iterator[None]:
        cupy.cuda.set_pinned_memory_allocator(pinned_pool.malloc)
        try:
            yield
        finally:
            cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)

    def pinned(count: int, _: Any) -> None:
        allocate = cupy.cuda.alloc_pinned_memory
        for _ in range(count):
            allocate(PINNED)

    pinned_peer = f"CuPy {cupy.__version__}, PinnedMemoryPool"
    yield Measure("pinned memory", pinned_peer, native_pinned, lambda: installed(adapter, allocator), pinned)


def numba_measures() -> Iterator[Measure]:
    numba_cuda, cuda = import_module("numba_cuda"), import_module("numba.cuda")
    adapter = import_module("allotment.numba")
    allocator = Allocator("cuda:0", settings="compat:2.11")

    def pair(count: int, _: Any) -> None:
        for _ in range(count):
            cuda.device_array(BLOCK, "u1")

    peer = f"numba-cuda {numba_cuda.__version__}"
    yield Measure("numba device_array", peer, nullcontext, lambda: installed(adapter, allocator), pair)


def core_measures() -> Iterator[Measure]:
    core, adapter = import_module("cuda.core"), import_module("allotment.cuda_core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    native, ours = core.DeviceMemoryResource(0), adapter.MemoryResource(Allocator("cuda:0", settings="compat:2.11"))

    def pair(count: int, resource: Any) -> None:
        for _ in range(count):
            resource.allocate(BLOCK, stream=stream).close()

    peer = f"cuda.core {core.__version__}, DeviceMemoryResource"
    yield Measure("cuda.core allocate", peer, lambda: nullcontext(native), lambda: nullcontext(ours), pair)


def all_measures() -> tuple[list[Measure], dict[str, str]]:
    """Return those that can be measured here, and why the others cannot."""
    found: list[Measure] = []
    missing = {}
    for make in (cupy_measures, numba_measures, core_measures):
        try:
            found += make()
        except Exception as error:  # not installed, or cannot use the driver: reported in the result
            missing[make.__name__.removesuffix("_measures")] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, missing


# The run.


def take(measures: list[Measure], rounds: int, count: int) -> dict[str, dict[str, Figure]]:
    device = CudaDevice(0)
    samples: dict[str, dict[str, list[float]]] = {each.name: {"native": [], "ours": []} for each in measures}
    for turn in range(rounds + 1):
        for each in measures:
            for kind, setting in (("native", each.native), ("ours", each.ours)):
                device.synchronize()
                taken = each.sample(setting, count)
                if turn > 0:  # the first round fills the caches
                    samples[each.name][kind].append(taken)
    for kinds in samples.values():  # round by round: the machine's clock may change from one to the next
        kinds[RATIO] = [ours / native for native, ours in zip(kinds["native"], kinds["ours"], strict=True)]
    return {name: {kind: Figure.of(taken) for kind, taken in kinds.items()} for name, kinds in samples.items()}


def cell(figure: Figure) -> str:
    return f"{figure.median:,.0f} ({figure.least:,.0f}..{figure.most:,.0f})"


def print_table(measures: list[Measure], figures: dict[str, dict[str, Figure]]) -> None:
    print("| | against | theirs, ns | ours, ns | ours / theirs |\n|---|---|---|---|---|")
    for each in measures:
        native, ours, ratio = (figures[each.name][kind] for kind in ("native", "ours", RATIO))
        print(
            f"| {each.name} | {each.peer} | {cell(native)} | {cell(ours)} "
            f"| {ratio.median:.2f} ({ratio.least:.2f}..{ratio.most:.2f}) |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=5_000, help="calls in a round")
    options = parser.parse_args()

    measures, missing = all_measures()
    figures = in_quiet(lambda: take(measures, options.rounds, options.count))
    device = CudaDevice(0)
    python = sys.version.split()[0]
    print(
        f"{device.model}, Python {python}, median (least..most) of {options.rounds} rounds of {options.count} calls\n"
    )
    print_table(measures, figures)
    for name, reason in missing.items():
        print(f"not measured: {name} ({reason})")
    reached = None
    if GOAL in figures:
        reached = figures[GOAL][RATIO].median <= 1
        print(f"\n{GOAL} is not slower than on CuPy's own pool: {'reached' if reached else 'missed'}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        result = {
            "device": device.model,
            "python": python,
            "measures": {each.name: {"against": each.peer} for each in measures},
            "missing": missing,
            "goal": {"cupy_empty_not_slower": reached},
        }
        for name, kinds in figures.items():
            result["measures"][name] |= {kind: asdict(figure) for kind, figure in kinds.items()}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
