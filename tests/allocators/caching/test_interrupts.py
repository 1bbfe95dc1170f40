"""Ctrl-C at every Python boundary of an operation that changes state, one after the other.

After each, the operation is repeated and works: nothing is half done, and no content is lost. An interrupt comes in
two ways: while Python code runs that the operation calls (a trace function raises at the n-th place where Python checks
for signals), and while a function of the device runs, which Python notices at the first such place after it.
"""

import itertools
import math
import sys
import threading

import pytest

import allotment
from allotment.devices import HostDevice
from helpers.interrupted import sweep
from helpers.peer import wait_until

SANITIZED = pytest.mark.parametrize("sanitize", [False, True], ids=["", "sanitized"])


KEEPING = {
    "host": {},
    "host again": {"keep_host": True},
    "nothing": {"keep": "nothing"},
    "file": {"keep": "file"},
}


class Weights:
    """Memory in a tag, with known contents."""

    def __init__(self, allocator):
        self.allocator = allocator
        with allotment.tag("interrupted"):
            self.arrays = [allocator.full(length, number, "int32") for number, length in enumerate((100, 70_000))]

    def awake(self, keep="host"):
        self.allocator.resume("interrupted")
        assert self.allocator.paused() == set()
        self.allocator.inspection.check_invariants()
        if keep != "nothing":
            assert all((array == number).all() for number, array in enumerate(self.arrays))
        with allotment.tag("interrupted"):
            self.allocator.free(self.allocator.malloc(512))

    def asleep(self, keep="host"):
        self.allocator.pause("interrupted", **KEEPING[keep])
        assert self.allocator.paused() == {"interrupted"}
        self.allocator.inspection.check_invariants()
        assert self.allocator.sleep.tags()["interrupted"]["reserved_bytes"] == 0


@SANITIZED
@pytest.mark.parametrize("keep", ["host", "host again", "file"])
def test_a_pause_that_is_interrupted_anywhere_can_be_tried_again(sanitize, keep):
    with allotment.Allocator("host", sanitize=sanitize) as allocator:
        weights = Weights(allocator)

        def check(was_interrupted):
            weights.asleep(keep)
            weights.awake(keep)

        seen = []
        sweep(lambda: allocator.pause("interrupted", **KEEPING[keep], progress=lambda *done: seen.append(done)), check)
        weights.arrays.clear()


@SANITIZED
@pytest.mark.parametrize("keep", KEEPING)
def test_a_resume_that_is_interrupted_anywhere_can_be_tried_again(sanitize, keep):
    with allotment.Allocator("host", sanitize=sanitize) as allocator:
        weights = Weights(allocator)
        weights.asleep(keep)

        def check(was_interrupted):
            weights.awake(keep)
            weights.asleep(keep)

        seen = []
        sweep(lambda: allocator.resume("interrupted", progress=lambda *done: seen.append(done)), check)
        allocator.resume("interrupted")
        weights.arrays.clear()


@pytest.mark.threads
def test_a_resume_in_the_background_whose_start_is_interrupted_ends_awake_or_asleep():
    with allotment.Allocator("host") as allocator:
        weights = Weights(allocator)
        allocator.pause("interrupted")

        def check(was_interrupted):
            for thread in threading.enumerate():
                if thread.name == "allotment resume" and thread.ident is not None:
                    thread.join(60)
            weights.awake()
            weights.asleep()

        sweep(lambda: allocator.sleep.resume_in_background("interrupted").result(60), check)
        allocator.resume("interrupted")
        weights.arrays.clear()


@pytest.mark.threads
def test_a_thread_that_runs_although_its_start_was_interrupted_completes_the_resume(monkeypatch):
    with allotment.Allocator("host") as allocator:
        weights = Weights(allocator)
        allocator.pause("interrupted")
        started = []

        def start_and_be_interrupted(thread):
            started.append(thread)
            start(thread)
            raise KeyboardInterrupt

        start = threading.Thread.start
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_and_be_interrupted)
            with pytest.raises(KeyboardInterrupt):
                allocator.sleep.resume_in_background("interrupted")
        started[0].join(60)
        weights.awake()
        weights.arrays.clear()


@SANITIZED
def test_a_tenant_whose_pause_is_interrupted_is_found_again_by_its_name(sanitize):
    with allotment.Allocator("host", sanitize=sanitize) as allocator:
        tenant = allocator.tenant("interrupted tenant")
        with allotment.tag("first of the tenant"):
            first = tenant.empty(1000)
        with allotment.tag("second of the tenant"):
            second = tenant.empty(1000)

        def check(was_interrupted):
            allocator.pause(tenant)
            assert allocator.paused() == {"first of the tenant", "second of the tenant"}
            allocator.resume(tenant)
            assert allocator.paused() == set()
            allocator.inspection.check_invariants()

        sweep(lambda: allocator.pause(tenant), check)
        del first, second


@SANITIZED
def test_entering_a_pool_that_is_interrupted_leaves_no_route(sanitize):
    with allotment.Allocator("host", sanitize=sanitize) as allocator:
        pool = allocator.pool()

        def enter_and_leave():
            with pool:
                pass

        def check(was_interrupted):
            assert pool.use_count == 1
            allocator.free(allocator.malloc(512))
            assert pool.reserved_bytes == 0
            allocator.inspection.check_invariants()

        sweep(enter_and_leave, check)
        pool.close()


@SANITIZED
def test_lending_a_pool_that_is_interrupted_ends(sanitize):
    with allotment.Allocator("host", sanitize=sanitize) as allocator:
        pool = allocator.pool()
        with pool:
            allocator.free(allocator.malloc(5 << 20))

        def lend():
            with pool.lent():
                pass

        def check(was_interrupted):
            assert not allocator.pools._lent
            lend()
            allocator.inspection.check_invariants()

        sweep(lend, check)
        pool.close()


def test_a_capture_that_is_interrupted_leaves_nothing_behind():
    with allotment.Allocator("host") as allocator:
        stream = allotment.Stream(allocator)

        def captured():
            with allotment.capture(stream) as graph:
                pass
            graph.reset()

        def check(was_interrupted):
            assert not stream._is_captured()
            captured()
            assert allocator.plan([512]).fits  # raises while a route of a capture is left
            allocator.inspection.check_invariants()

        sweep(captured, check)
        stream.destroy()


@pytest.mark.threads
@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared on Linux")
def test_sharing_that_is_interrupted_holds_no_block_for_ever():
    with allotment.Allocator("host", settings="shareable:True") as allocator:
        blocks = [allocator.empty(1000)]

        def check(was_interrupted):
            allocator.share(blocks[0], hold=math.inf).close()
            blocks.pop().close()
            wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)
            allocator.inspection.check_invariants()
            blocks.append(allocator.empty(1000))

        # The number of places depends on the version of Python: 3.14 has the fewest.
        assert sweep(lambda: allocator.share(blocks[0], hold=0), check) > 40
        blocks.clear()


def test_an_interrupt_during_any_call_of_the_device_is_harmless(extension):
    interrupts = extension("interrupts")
    device = HostDevice()
    interrupts.interrupt(device)
    with allotment.Allocator(device) as allocator:
        weights = Weights(allocator)
        for operation, restore in [(allocator.pause, weights.awake), (allocator.resume, weights.asleep)]:
            for number in itertools.count():
                interrupts.arm(number)
                try:
                    operation("interrupted")
                    repr("noticed here at the latest")
                except KeyboardInterrupt:
                    pass
                was_sent = interrupts.disarm()
                operation("interrupted")
                allocator.inspection.check_invariants()
                restore()
                if not was_sent:
                    break
            operation("interrupted")
        weights.awake()
        weights.arrays.clear()
