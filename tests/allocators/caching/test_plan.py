"""`plan` and `would_fit` predict what malloc then does, and change nothing."""

from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import allotment
from allotment import Allocator, Plan, SimulatedDevice
from allotment.errors import OutOfMemoryError, SizeError, UnsupportedError
from helpers.effort import some

MIB = 1 << 20
SETTINGS = (
    "compat:2.11",
    "compat:newest",
    "compat:2.11,expandable_segments:True",
    "compat:newest,expandable_segments:True",
    "compat:newest,max_split_size_mb:21",
    "compat:2.11,max_split_size_mb:21,garbage_collection_threshold:0.5",
    "compat:newest,garbage_collection_threshold:0.6,roundup_power2_divisions:4",
)
SIZES = st.one_of(
    st.sampled_from([1000, MIB, 5 * MIB, 12 * MIB, 20 * MIB, 30 * MIB]),
    st.integers(1, 3 * MIB),
    st.integers(1, 40 * MIB),
)
STREAMS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("malloc"), SIZES, STREAMS),
    st.tuples(st.just("free"), st.integers(0, 30)),
    st.tuples(st.just("use"), st.integers(0, 30), STREAMS),
    st.tuples(st.just("use and free"), st.integers(0, 30), STREAMS),
    st.tuples(st.just("finish"), STREAMS),
    st.tuples(st.just("in pool"), SIZES, STREAMS),
    st.tuples(st.just("empty")),
)


def facts(allocator: Allocator) -> dict[str, Any]:
    """Return everything that must not change, except for the entry that a snapshot makes."""
    shown = allocator.snapshot()
    shown["device_traces"] = [
        [entry for entry in trace if entry["action"] != "snapshot"] for trace in shown["device_traces"]
    ]
    return {"snapshot": shown, "stats": allocator.stats()}


def prepare(allocator: Allocator, device: SimulatedDevice, pool: allotment.Pool, steps: list[tuple[Any, ...]]) -> None:
    live: list[int] = []
    for name, *arguments in steps:
        try:
            if name == "malloc":
                live.append(allocator.malloc(*arguments))
            elif name == "in pool":
                with pool:
                    live.append(allocator.malloc(*arguments))
            elif name == "empty":
                allocator.empty_cache()
            elif name == "finish":
                device.finish(arguments[0])
            elif live:
                block = live[arguments[0] % len(live)]
                if "use" in name:
                    device.launch(arguments[1])
                    allocator.record_stream(block, arguments[1])
                if "free" in name:
                    allocator.free(block)
                    live.remove(block)
        except OutOfMemoryError:
            pass


def what_malloc_does(allocator: Allocator, requests: list[tuple[int, int]]) -> Plan:
    before = allocator.stats()["reserved_bytes.all.current"]
    failed = None
    for number, (size, stream) in enumerate(requests):
        try:
            allocator.malloc(size, stream)
        except OutOfMemoryError:
            failed = number
            break
    return Plan(failed is None, allocator.stats()["reserved_bytes.all.current"] - before, failed)


@settings(deadline=None, max_examples=some(300))
@given(
    text=st.sampled_from(SETTINGS),
    limit=st.sampled_from([None, 50 * MIB, 90 * MIB]),
    steps=st.lists(STEPS, max_size=25),
    requests=st.lists(st.tuples(SIZES, STREAMS), max_size=12),
    routed=st.booleans(),
)
@example(
    text=SETTINGS[1], limit=None, steps=[("malloc", MIB, 0), ("free", 0)], requests=[(2 * MIB, 0)] * 3, routed=False
)
def test_a_plan_is_what_malloc_then_does(
    text: str, limit: int | None, steps: list[Any], requests: list[tuple[int, int]], routed: bool
) -> None:
    device = SimulatedDevice(120 * MIB)
    allocator = Allocator(device, settings=text, limit=limit)
    allocator.record_history(context=None)
    pool = allocator.pool()
    prepare(allocator, device, pool, steps)
    with ExitStack() as stack:
        if routed:
            stack.enter_context(pool)
        before = facts(allocator)
        try:
            planned = allocator.plan(requests)
        except UnsupportedError as error:
            assert "wait for the end" in str(error)
            return
        assert facts(allocator) == before
        allocator.inspection.check_invariants()
        assert allocator.would_fit(requests) == planned.fits
        assert what_malloc_does(allocator, requests) == planned
        allocator.inspection.check_invariants()


def test_sizes_without_streams_are_for_the_default_stream_and_an_empty_plan_fits() -> None:
    allocator = Allocator("sim:64MiB", settings="compat:newest")
    assert allocator.plan([]) == Plan(True, 0, None)
    assert allocator.plan([0, 0]) == Plan(True, 0, None)
    assert allocator.plan([30 * MIB, 0, 30 * MIB, 30 * MIB]) == Plan(False, 60 * MIB, 3)
    assert not allocator.would_fit([1 << 62])
    with pytest.raises(SizeError):
        allocator.plan([-1])


def test_a_plan_counts_what_is_cached_and_the_limit() -> None:
    allocator = Allocator("sim:1GiB", settings="compat:newest", limit="64MiB")
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.plan([40 * MIB]) == Plan(True, 0, None)
    assert allocator.plan([40 * MIB, 20 * MIB]) == Plan(True, 20 * MIB, None)
    assert allocator.plan([50 * MIB]) == Plan(True, 10 * MIB, None)  # the cache would be released first
    assert allocator.plan([40 * MIB, 40 * MIB]).failed_index == 1
    assert allocator.stats()["num_alloc_retries"] == 0
    assert allocator.stats()["reserved_bytes.all.current"] == 40 * MIB


def test_a_free_that_waits_counts_once_its_streams_are_done() -> None:
    device = SimulatedDevice("1GiB")
    allocator = Allocator(device, settings="compat:newest")
    block = allocator.malloc(40 * MIB)
    device.launch(7)
    allocator.record_stream(block, 7)
    allocator.free(block)
    assert allocator.plan([40 * MIB]) == Plan(True, 40 * MIB, None)
    device.finish(7)
    assert allocator.plan([40 * MIB]) == Plan(True, 0, None)
    assert allocator.stats()["active_bytes.all.current"] == 40 * MIB  # a plan does not complete the free itself


def test_what_cannot_be_rehearsed_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="placement:dense"):
        Allocator("sim:1GiB", settings="placement:dense").plan([MIB])


def test_a_plan_on_the_host_is_what_malloc_then_does() -> None:
    allocator = Allocator("host", settings="compat:newest,expandable_segments:True", limit="64MiB")
    kept = [allocator.malloc(10 * MIB) for _ in range(3)]
    allocator.free(kept[1])
    requests = [(5 * MIB, 0), (6 * MIB, 0), (30 * MIB, 0), (20 * MIB, 0)]
    planned = allocator.plan(requests)
    assert what_malloc_does(allocator, requests) == planned
    allocator.inspection.check_invariants()
