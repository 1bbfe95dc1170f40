"""Any sequence of calls, against a model of the records: a dictionary, and sums over it."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allotment import AddressError, DeviceError, OutOfMemoryError, PluggableAllocator
from helpers.effort import some
from helpers.engine import MIB, counters_of

SIZES = st.one_of(st.integers(0, 10), st.integers(MIB - 1, MIB + 1), st.integers(0, 1 << 40))
DEVICES = st.integers(0, 2)
STREAMS = st.sampled_from((0, 1, 7, 1 << 50))
ADDRESSES = st.one_of(st.integers(0, 4), st.sampled_from(((1 << 64) - 1, 1 << 63, 4096, 8192)))  # few, so they repeat


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, int, int]] = {}
        self.totals: dict[int, Counter[str]] = defaultdict(Counter)
        self.peaks: Counter[int] = Counter()
        self.answer: int | Exception = 0
        self.freed: list[tuple[int, int, int, int]] = []
        self.fails = False
        self.plug = PluggableAllocator(self.alloc, self.free)

    def alloc(self, size: int, device: int, stream: int) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def free(self, *reported: int) -> None:
        self.freed.append(reported)
        if self.fails:
            raise ValueError

    def bytes_out(self, device: int) -> int:
        return sum(size for address, (size, owner, _) in self.live.items() if address and owner == device)

    @rule(size=SIZES, device=DEVICES, stream=STREAMS, address=ADDRESSES)
    def malloc(self, size: int, device: int, stream: int, address: int) -> None:
        self.answer = address
        assert self.plug.malloc(size, stream, device=device) == address
        if address not in self.live:
            self.live[address] = size, device, stream
            if address:
                self.totals[device]["allocated"] += size
                self.totals[device]["allocs"] += 1
        if address == 0 and size:
            self.totals[device]["ooms"] += 1
        self.peaks[device] = max(self.peaks[device], self.bytes_out(device))

    @rule(size=SIZES, device=DEVICES)
    def refuse(self, size: int, device: int) -> None:
        self.answer = MemoryError()
        with pytest.raises(OutOfMemoryError):
            self.plug.malloc(size, device=device)
        self.totals[device]["ooms"] += 1

    @rule(size=SIZES, device=DEVICES)
    def break_down(self, size: int, device: int) -> None:
        self.answer = ValueError()
        with pytest.raises(DeviceError):
            self.plug.malloc(size, device=device)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), fails=st.booleans())
    def free_one(self, data: st.DataObject, fails: bool) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        size, device, stream = self.live.pop(address)
        self.fails = fails
        if fails:
            with pytest.raises(DeviceError):
                self.plug.free(address)
        else:
            self.plug.free(address)
        assert self.freed.pop() == (address, size, device, stream)
        if address:
            self.totals[device]["freed"] += size
            self.totals[device]["frees"] += 1

    @rule(address=ADDRESSES)
    def free_unknown(self, address: int) -> None:
        if address not in self.live:
            with pytest.raises(AddressError):
                self.plug.free(address)

    @rule(device=DEVICES)
    def reset_peak(self, device: int) -> None:
        self.plug.reset_peak_stats(device)
        self.peaks[device] = self.bytes_out(device)

    @rule(device=DEVICES)
    def reset_accumulated(self, device: int) -> None:
        self.plug.inspection.reset_accumulated_stats(device)
        self.totals[device].clear()

    @rule(address=ADDRESSES)
    def base(self, address: int) -> None:
        assert self.plug.inspection.base_allocation(address) == (address, self.live.get(address, (0,))[0])

    @invariant()
    def books_agree(self) -> None:
        assert not self.freed
        segments = self.plug.history.segments()
        assert {
            (segment["device"], segment["address"], segment["total_size"], segment["stream"]) for segment in segments
        } == {(device, address, size, stream) for address, (size, device, stream) in self.live.items() if address}
        for device in range(3):
            stats = self.plug.stats(device)
            expected = counters_of([segment for segment in segments if segment["device"] == device])
            assert {key: stats[key] for key in expected} == expected
            totals = self.totals[device]
            assert stats["allocated_bytes.all.peak"] == self.peaks[device]
            assert stats["allocated_bytes.all.allocated"] == totals["allocated"]
            assert stats["allocated_bytes.all.freed"] == totals["freed"]
            assert stats["allocation.all.allocated"] == stats["num_device_alloc"] == totals["allocs"]
            assert stats["allocation.all.freed"] == stats["num_device_free"] == totals["frees"]
            assert stats["num_ooms"] == totals["ooms"]


Books.TestCase.settings = settings(max_examples=some(60), stateful_step_count=40, deadline=None)
test_books = Books.TestCase
