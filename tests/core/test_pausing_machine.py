"""Any sequence of requests, pauses and resumes of tags, on a device that refuses at any time.

The model knows the blocks of each tag, which tags are paused and how much memory the device has; it does not predict
addresses.
"""

from contextlib import nullcontext, suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import allotment
from allotment.errors import DeviceError, OutOfMemoryError, PausedError
from helpers.effort import some
from helpers.engine import MIB, on_device

CAPACITY = 200 * MIB
TAGS = ("", "weights", "cache")
TAG = st.sampled_from(TAGS)
REFUSABLE = ("chunk_create", "chunk_release", "map", "unmap", "set_access", "range_reserve", "device_synchronize")


class PausingMachine(RuleBasedStateMachine):
    @initialize(text=st.sampled_from(("", "expandable_segments:True", "placement:dense")))
    def begin(self, text):
        self.alloc = on_device(CAPACITY, text)
        self.device = self.alloc.device
        self.blocks = {}
        self.asleep = set()
        self.refusing = False

    def inside(self, tag):
        return allotment.tag(tag) if tag else nullcontext()

    @rule(tag=TAG, size=st.integers(1, 4 * MIB) | st.integers(MIB, 60 * MIB), stream=st.sampled_from((0, 7)))
    def malloc(self, tag, size, stream):
        try:
            with self.inside(tag):
                address = self.alloc.malloc(size, stream)
        except PausedError as error:
            assert error.tag == tag
            assert tag in self.asleep
        except (OutOfMemoryError, DeviceError):
            assert tag not in self.asleep
        else:
            assert tag not in self.asleep
            self.blocks[address] = (size, tag)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), busy=st.booleans())
    def free(self, data, busy):
        address = data.draw(st.sampled_from(sorted(self.blocks)))
        if busy:
            self.device.launch(9)
            self.alloc.record_stream(address, 9)
        self.alloc.free(address)
        del self.blocks[address]

    @rule(tag=st.sampled_from(TAGS[1:]))
    def pause(self, tag):
        if tag not in self.alloc.sleep.tags():
            return
        try:
            self.alloc.pause(tag, keep="nothing")
        except DeviceError:
            assert self.refusing
        self.asleep = self.alloc.paused()

    @rule(tag=st.sampled_from(TAGS[1:]))
    def resume(self, tag):
        if tag not in self.alloc.sleep.tags():
            return
        used = self.device.used
        try:
            self.alloc.resume(tag)
        except (OutOfMemoryError, DeviceError):
            assert tag in self.asleep
            assert self.device.used <= used or self.refusing
        else:
            self.asleep.discard(tag)

    @rule(tag=st.sampled_from(TAGS[1:]), hard=st.none() | st.integers(20, 80), soft=st.none() | st.integers(10, 60))
    def limit(self, tag, hard, soft):
        self.alloc.set_limit(tag, hard=hard and hard * MIB, soft=soft and soft * MIB)

    @rule()
    def empty_cache(self):
        try:
            self.alloc.empty_cache()
        except DeviceError:
            assert self.refusing

    @rule()
    def finish(self):
        with suppress(DeviceError):
            self.device.finish()

    @rule(operation=st.sampled_from(REFUSABLE), times=st.integers(1, 3), after=st.integers(0, 3), short=st.booleans())
    def refuse(self, operation, times, after, short):
        self.device.refuse(operation, times, after, out_of_memory=short)
        self.refusing = True

    @precondition(lambda self: self.refusing)
    @rule()
    def heal(self):
        for operation in REFUSABLE:
            self.device.refuse(operation, times=0)
        self.refusing = False

    @invariant()
    def everything_is_in_order(self):
        if not hasattr(self, "alloc"):
            return
        self.alloc.inspection.check_invariants()
        assert self.alloc.paused() == self.asleep
        shown = {
            block["address"]
            for segment in self.alloc.history.segments()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        assert shown == set(self.blocks)
        assert self.device.used >= self.alloc.stats()["reserved_bytes.all.current"]

    def teardown(self):
        if not hasattr(self, "alloc"):
            return
        self.heal()
        for address in self.blocks:
            self.alloc.free(address)
        self.device.finish()
        self.alloc.empty_cache()
        for tag in self.alloc.sleep.tags():
            self.alloc.set_limit(tag, hard=None)
            self.alloc.resume(tag)
        self.alloc.empty_cache()
        self.alloc.inspection.check_invariants()
        assert self.alloc.stats()["reserved_bytes.all.current"] == 0
        assert self.device.used == 0


PausingMachine.TestCase.settings = settings(max_examples=some(40), stateful_step_count=30, deadline=None)
TestPausing = PausingMachine.TestCase
