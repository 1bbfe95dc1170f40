"""The caching allocator for host memory against dictionaries that implement its rules literally."""

from itertools import groupby

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from allotment._allocators.host_cache import cache as cpu
from allotment.errors import AddressError, OutOfMemoryError
from helpers.effort import some
from helpers.scripted_memory import ScriptedMemory


class Block:
    """The model's facts about one piece of memory from the system."""

    def __init__(self, address, size):
        self.address, self.size = address, size
        self.places = 0
        """The number of its places on free lists."""
        self.is_checked = False
        """Whether the first of them is a checked allocator's."""


class Model:
    """The rules, literally, on dictionaries; `calls` are the calls that the system must have received."""

    def __init__(self, checked):
        self.checked = checked
        self.map = {}
        self.lists = [{} for _ in checked]
        self.hits = [0] * len(checked)
        self.misses = [0] * len(checked)
        self.calls = []

    def hit(self, index, size):
        """Return the address of a hit, or None."""
        if not self.lists[index].get(size):
            self.misses[index] += 1
            return None
        self.hits[index] += 1
        block = self.lists[index][size].pop()
        block.places -= 1
        return block.address

    def is_refused(self, index, address):
        block = self.map.get(address)
        return self.checked[index] and address != 0 and (block is None or block.places > 0)

    def free(self, index, address):
        block = self.map.get(address)
        if block is None:
            self.system_free(address)
        elif address != 0 or block.places == 0:
            block.is_checked = block.is_checked if block.places else self.checked[index]
            block.places += 1
            self.lists[index].setdefault(block.size, []).append(block)

    def release(self, index):
        for blocks in self.lists[index].values():
            for block in blocks:
                block.places -= 1
                if self.map.get(block.address) is block:
                    del self.map[block.address]
                if block.places == 0:
                    self.system_free(block.address)
        self.lists[index] = {}

    def system_free(self, address):
        if address != 0:
            self.calls.append(("free", address))

    def on_a_list(self, address):
        return any(block.address == address for lists in self.lists for blocks in lists.values() for block in blocks)

    def cached_bytes(self, index):
        return sum(size * len(blocks) for size, blocks in self.lists[index].items())


class CachingMachine(RuleBasedStateMachine):
    """Three allocators, checked or not, and the guard. Memory is freed in every wrong way too."""

    addresses = Bundle("addresses")

    @initialize(checked=st.lists(st.booleans(), min_size=3, max_size=3))
    def open(self, checked):
        cpu.record_free(0)
        self.memory = ScriptedMemory()
        self.caches = [cpu.CachingAllocator(checked=on, system=self.memory) for on in checked]
        self.model = Model(checked)
        self.guards = []
        self.seen = {0}

    def teardown(self):
        if hasattr(self, "guards"):
            while self.guards:
                self.leave_guard()
            for address, block in self.model.map.items():
                if not block.places:
                    cpu.record_free(address)

    def compare_calls(self):
        """A release frees in its own order, so frees are compared as a set between allocations."""

        def in_order(calls):
            return [
                call
                for what, group in groupby(calls, key=lambda call: call[0])
                for call in (sorted(group) if what == "free" else group)
            ]

        assert in_order(self.memory.calls) == in_order(self.model.calls)
        for what, address in self.model.calls:
            # The system may return it again, unless a free list still has it (it was freed while it was there).
            if what == "free" and address not in self.memory.reusable and not self.model.on_a_list(address):
                self.memory.reusable.append(address)
        self.memory.calls.clear()
        self.model.calls.clear()

    def allocate_through(self, allocate, index, size, failures):
        expected = self.model.hit(index, size)
        if expected is None and size == 0:
            failures = 0
        self.memory.failures = [None] * failures if expected is None else []
        if expected is None:
            self.model.calls.append(("allocate", size))
            if failures:
                self.model.release(index)
                self.model.calls.append(("allocate", size))
        if expected is None and failures == 2:
            with pytest.raises(OutOfMemoryError):
                allocate(size)
            self.compare_calls()
            return multiple()
        address = allocate(size)
        if expected is None:
            assert (address == 0) == (size == 0)
            self.model.map[address] = Block(address, size)
        else:
            assert address == expected
        self.compare_calls()
        self.seen.add(address)
        return address

    sizes = st.sampled_from([0, 1, 8, 64])
    failures = st.sampled_from([0, 0, 0, 1, 2])

    @rule(target=addresses, index=st.integers(0, 2), size=sizes, failures=failures)
    def allocate(self, index, size, failures):
        return self.allocate_through(self.caches[index].allocate, index, size, failures)

    @precondition(lambda self: self.guards and self.guards[-1][1] is not None)
    @rule(target=addresses, size=sizes, failures=failures)
    def allocate_by_default(self, size, failures):
        return self.allocate_through(cpu.allocate, self.guards[-1][1], size, failures)

    def free_through(self, free, index, address):
        if self.model.is_refused(index, address):
            with pytest.raises(AddressError):
                free(address)
        else:
            free(address)
            self.model.free(index, address)
        self.compare_calls()

    @rule(index=st.integers(0, 2), address=addresses)
    def free(self, index, address):
        self.free_through(self.caches[index].free, index, address)

    @rule(address=addresses)
    def free_by_default(self, address):
        index = self.guards[-1][1] if self.guards else None
        block = self.model.map.get(address)
        if index is not None:
            self.free_through(cpu.free, index, address)
        elif block is not None and block.places and address != 0:
            with pytest.raises(AddressError):
                cpu.free(address)
        elif block is not None:
            cpu.free(address)
            del self.model.map[address]
            self.model.system_free(address)
            self.compare_calls()

    @rule(address=addresses)
    def record_free(self, address):
        block = self.model.map.get(address)
        if block is not None and block.places and block.is_checked and address != 0:
            with pytest.raises(AddressError):
                cpu.record_free(address)
        else:
            cpu.record_free(address)
            self.model.map.pop(address, None)

    @rule(index=st.integers(0, 2))
    def empty_cache(self, index):
        self.caches[index].empty_cache()
        self.model.release(index)
        self.compare_calls()

    @rule(index=st.integers(0, 2))
    def replace(self, index):
        if index not in [installed for _, installed in self.guards]:
            self.caches[index] = cpu.CachingAllocator(checked=self.model.checked[index], system=self.memory)
            self.model.release(index)
            self.model.hits[index] = self.model.misses[index] = 0
            self.compare_calls()

    @rule(index=st.none() | st.integers(0, 2))
    def enter_guard(self, index):
        guard = cpu.caching(None if index is None else self.caches[index])
        guard.__enter__()
        self.guards.append((guard, index))

    @precondition(lambda self: self.guards)
    @rule()
    def leave_guard(self):
        self.guards.pop()[0].__exit__(None, None, None)

    @invariant()
    def everything_agrees(self):
        for index, cache in enumerate(self.caches):
            cache.check_invariants()
            stats = cache.stats()
            assert stats["cached_bytes"] == self.model.cached_bytes(index)
            assert (stats["hits"], stats["misses"]) == (self.model.hits[index], self.model.misses[index])
        for address in self.seen:
            block = self.model.map.get(address)
            assert cpu.recorded_size(address) == (None if block is None else block.size)
        installed = self.guards[-1][1] if self.guards else None
        assert cpu.current() is (None if installed is None else self.caches[installed])


TestCachingMachine = CachingMachine.TestCase
TestCachingMachine.settings = settings(max_examples=some(150), stateful_step_count=60, deadline=None)
