"""Any sequence of calls on a private pool, with states saved and restored anywhere in it.

The model knows the blocks in use now and at each saved state. It predicts whether a restore must
succeed: every recorded range is mapped where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment._allocators.caching.pool import PoolState, SegmentState
from allotment.errors import CheckpointError
from helpers.effort import some
from helpers.engine import GIB, KIB, MIB, check, on_device, unchanged

STREAMS = (0, 7)
READER = 9
SIZES = st.one_of(
    st.integers(1, 64 * KIB),
    st.integers(64 * KIB, 2 * MIB),
    st.integers(MIB, 30 * MIB),
    st.sampled_from((512, MIB, 10 * MIB, 20 * MIB, 40 * MIB)),
)


@dataclass
class Block:
    size: int
    stream: int
    read: bool = False
    """By another stream, which was declared."""


@dataclass
class Taken:
    state: PoolState
    blocks: dict[int, Block] = field(default_factory=dict)


class CheckpointMachine(RuleBasedStateMachine):
    @initialize(expandable=st.booleans())
    def begin(self, expandable: bool) -> None:
        self.alloc = on_device(4 * GIB, f"expandable_segments:{expandable}")
        self.device = self.alloc.device
        self.pool = self.alloc.pool()
        self.other = self.alloc.pool()
        self.blocks: dict[int, Block] = {}
        self.outside: list[int] = []
        self.taken: list[Taken] = []

    # --- history ---

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=5), stream=st.sampled_from(STREAMS))
    def malloc(self, sizes: list[int], stream: int) -> None:
        with self.pool:
            for size in sizes:
                address = self.alloc.malloc(size, stream)
                assert address not in self.blocks
                self.blocks[address] = Block(size, stream)

    @rule(size=SIZES, elsewhere=st.booleans())
    def malloc_outside(self, size: int, elsewhere: bool) -> None:
        if elsewhere:
            with self.other:
                self.outside.append(self.alloc.malloc(size))
        else:
            self.outside.append(self.alloc.malloc(size))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), routed=st.booleans())
    def free(self, data: st.DataObject, routed: bool) -> None:
        for address in data.draw(st.sets(st.sampled_from(sorted(self.blocks)), min_size=1)):
            if routed:
                with self.other:
                    self.alloc.free(address)
            else:
                self.alloc.free(address)
            del self.blocks[address]

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.blocks)))
        self.device.launch(READER)
        self.alloc.record_stream(address, READER)
        self.blocks[address].read = True

    @rule()
    def finish(self) -> None:
        self.device.finish()
        self.alloc.malloc(0)
        self.outside.append(self.alloc.malloc(512))

    @rule()
    def empty_cache(self) -> None:
        self.alloc.empty_cache()

    @rule(expandable=st.booleans())
    def configure(self, expandable: bool) -> None:
        self.alloc.settings = f"expandable_segments:{expandable}"

    # --- states ---

    @rule()
    def checkpoint(self) -> None:
        waiting = any(block["state"] == "active_pending_free" for s in self.whole_pool() for block in s["blocks"])
        try:
            state = self.pool.checkpoint()
        except CheckpointError as error:
            assert waiting and "waits" in str(error)
            return
        assert state.in_use == set(self.blocks)
        self.taken.append(Taken(state, {a: Block(b.size, b.stream) for a, b in self.blocks.items()}))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        then = self.taken[data.draw(st.integers(0, len(self.taken) - 1))]
        if not self.is_restorable(then.state):
            with unchanged(self.alloc), pytest.raises(CheckpointError):
                self.pool.restore(then.state)
            return
        before = self.alloc.stats()
        elsewhere = [s for s in self.alloc.history.segments() if s["segment_pool_id"] != self.pool.id]
        freed, created = self.pool.restore(then.state)
        assert sorted(freed) == sorted(self.blocks)
        assert sorted(created) == sorted(then.blocks)
        assert [s for s in self.alloc.history.segments() if s["segment_pool_id"] != self.pool.id] == elsewhere
        self.check_counted(then.state, len(freed), before)
        self.check_arranged(then.state)
        self.blocks = {address: Block(block.size, block.stream) for address, block in then.blocks.items()}

    def whole_pool(self) -> list[dict]:
        """Every mapped run of the pool, even if it does not begin its range."""
        return [s for s in self.alloc.history.segments() if s["segment_pool_id"] == self.pool.id]

    def is_restorable(self, state: PoolState) -> bool:
        now = self.whole_pool()
        for recorded in state.segments:
            begin, end = recorded.address, recorded.blocks[-1].address + recorded.blocks[-1].size
            inside = [s for s in now if begin <= s["address"] < end]
            runs = [(s["address"], s["address"] + s["total_size"]) for s in inside]
            if runs != mapped_runs(recorded) and not has_grown_at_its_end(recorded, runs):
                return False
        return True

    def check_counted(self, state: PoolState, freed: int, before: dict[str, int]) -> None:
        """Every block of the state was allocated, and every free one of them freed again."""
        handed = [block for segment in state.segments for block in segment.blocks if block.mapped]
        moved = {key: value - before[key] for key, value in self.alloc.stats().items()}
        assert moved["allocation.all.allocated"] == len(handed)
        assert moved["allocation.all.freed"] == freed + sum(not block.in_use for block in handed)
        assert moved["requested_bytes.all.allocated"] == sum(block.size for block in handed)
        for key in ("reserved_bytes.all.allocated", "segment.all.freed", "num_device_alloc", "num_device_free"):
            assert moved[key] == 0

    def check_arranged(self, state: PoolState) -> None:
        now = {b["address"]: (b["size"], b["state"]) for s in self.whole_pool() for b in s["blocks"]}
        for segment in state.segments:
            for block in segment.blocks:
                if block.mapped:
                    size, state_now = now.pop(block.address)
                    assert state_now == ("active_allocated" if block.in_use else "inactive")
                    is_last = block.address + block.size == mapped_runs(segment)[-1][1]
                    assert size == block.size or (is_last and not block.in_use and size > block.size)
        assert all(left != "active_allocated" for _, left in now.values()), "what came later is free"

    # --- invariants ---

    @invariant()
    def blocks_are_those_in_use(self) -> None:
        check(self.alloc)
        assert self.alloc.pools.check_live_allocations(self.pool.id, self.blocks)
        assert self.device.used == self.alloc.stats()["reserved_bytes.all.current"]

    def teardown(self) -> None:
        if not hasattr(self, "alloc"):
            return
        for address in [*self.blocks, *self.outside]:
            self.alloc.free(address)
        self.pool.close()
        self.other.close()
        self.alloc.empty_cache()
        check(self.alloc)
        assert self.device.used == 0


def mapped_runs(segment: SegmentState) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for block in segment.blocks:
        if not block.mapped:
            continue
        if runs and runs[-1][1] == block.address:
            runs[-1] = (runs[-1][0], block.address + block.size)
        else:
            runs.append((block.address, block.address + block.size))
    return runs


def has_grown_at_its_end(segment: SegmentState, runs: list[tuple[int, int]]) -> bool:
    """Whether the recorded bytes are still mapped, with more mapped after the last of them."""
    then, tail = mapped_runs(segment), segment.blocks[-1]
    if tail.mapped or not then or len(runs) != len(then):
        return False
    return (
        runs[:-1] == then[:-1] and runs[-1][0] == then[-1][0] and then[-1][1] < runs[-1][1] < tail.address + tail.size
    )


CheckpointMachine.TestCase.settings = settings(
    max_examples=some(120),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_any_history_with_states = CheckpointMachine.TestCase
