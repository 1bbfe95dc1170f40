"""An ordinary hit takes a short path, in Python and in C. It must decide and count exactly as the long one does.

A history makes every request take the long path, so three allocators get the same calls: one as it is, one through its
C functions, and one that records its history.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment import Allocator
from helpers.effort import some
from helpers.entry_points import table_of

MALLOC, FREE, LATEST, EMPTY, RESET = "malloc", "free", "free the latest", "empty the cache", "reset the peaks"
SIZES = [1, 512, 513, 1_000, 60_000, 300_000, 1_000_000, (1 << 20) + 1, 3_000_000, 9_000_000, 24_000_000, 40_000_000]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([MALLOC] * 6 + [FREE] * 4 + [LATEST] * 4 + [EMPTY, RESET]),
        st.sampled_from(SIZES) | st.integers(1, 5_000_000),
        st.integers(0, 1 << 20),
    ),
    max_size=120,
)
SETTINGS = [
    "compat:newest",
    "compat:2.11",
    "compat:2.13",
    "compat:newest,max_split_size_mb:21",
    "compat:newest,max_split_size_mb:21,max_non_split_rounding_mb:21",
    "compat:newest,roundup_power2_divisions:4",
    "compat:newest,expandable_segments:True",
    "compat:newest,garbage_collection_threshold:0.5",
    "compat:newest,placement:dense",
]


def arrangement(allocator):
    """All blocks, without what only a history knows."""
    for segment in allocator.snapshot()["segments"]:
        yield {key: value for key, value in segment.items() if key not in ("blocks", "frames")}
        for block in segment["blocks"]:
            yield {key: value for key, value in block.items() if key != "frames"}


@pytest.mark.parametrize("text", SETTINGS)
@settings(max_examples=some(150), deadline=None)
@given(steps=STEPS)
def test_the_short_path_decides_and_counts_as_the_long_one(text, steps):
    limit = "256MiB" if "garbage" in text else None
    short, long, from_c = (Allocator("sim:8GiB", settings=text, limit=limit) for _ in range(3))
    long.record_history(context=None)
    table = table_of(from_c)
    live = []
    for step, size, choice in steps:
        if step == MALLOC and sum(taken for _, taken in live) + size < 150_000_000:
            stream = choice % 5 // 4  # mostly the default one
            address = short.malloc(size, stream)
            assert address == long.malloc(size, stream) == table.allocate(size, stream)
            live.append((address, size))
        elif step in (FREE, LATEST) and live:
            address, _ = live.pop(choice % len(live) if step == FREE else -1)
            assert table.free(address)
            short.free(address)
            long.free(address)
        for allocator in (short, long, from_c):
            if step == EMPTY:
                allocator.empty_cache()
            elif step == RESET:
                allocator.reset_peak_stats()
        assert short.stats() == long.stats() == from_c.stats()
    short.inspection.check_invariants()
    from_c.inspection.check_invariants()
    assert list(arrangement(short)) == list(arrangement(long)) == list(arrangement(from_c))


def test_a_block_that_comes_and_goes_has_the_same_address_and_others_have_their_own():
    allocator = Allocator("sim:1GiB")
    first = allocator.malloc(1_000)
    allocator.free(first)
    assert allocator.malloc(1_000) == first
    second, third = allocator.malloc(1_000), allocator.malloc(70_000)
    assert len({first, second, third}) == 3
    for address in (second, first, third):
        allocator.free(address)
    assert allocator.malloc(1_000) == first
    assert allocator.stats()["allocation.all.current"] == 1
