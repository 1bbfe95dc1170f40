"""Ctrl-C at every Python boundary of an operation that changes state, one after the other.

After each, the operation is tried again and works: nothing is half done, and no content is lost. An interrupt comes in
two ways: while Python code runs that the operation calls (a trace function raises at the n-th place where Python looks
for signals), and while a function of the device runs, which Python notices at the first such place after it.
"""

import _weakrefset
import dis
import gc
import inspect
import itertools
import math
import sys
import threading
import weakref

import pytest

import allotment
from allotment.devices import HostDevice
from helpers.peer import wait_until

SANITIZED = pytest.mark.parametrize("sanitize", [False, True], ids=["", "sanitized"])
# The interpreter may be interrupted between `with` and the methods that it calls; nobody can help that.
OF_WITH = {"__enter__", "__exit__"}
# Python looks for signals when a function begins, after a call, and when a loop begins again.
NOTICES_SIGNALS = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
# A thread that is interrupted while it starts is a test of its own; what is raised in callbacks of weak references and
# of collections reaches nobody.
FILES_LEFT_OUT = {__file__, threading.__file__, weakref.__file__, _weakrefset.__file__}


def handler_at(code, offset):
    """Return where the interpreter goes on if the instruction at this offset raises; None if that leaves the frame."""
    entries = dis._parse_exception_table(code)
    return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)


def is_in_finalizer(frame):
    """What is raised there reaches nobody."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupted_at(number, operation):
    """Whether the operation reached this boundary, counted from 0, and was interrupted there."""
    seen = 0
    done = False
    left_out = FILES_LEFT_OUT | {each.__code__.co_filename for each in gc.callbacks if hasattr(each, "__code__")}

    def boundary():
        nonlocal seen, done
        if seen == number:
            done = True
            raise KeyboardInterrupt
        seen += 1

    def trace(frame, event, argument):
        code = frame.f_code
        if done or code.co_filename in left_out or is_in_finalizer(frame):
            return None
        # A trace function that raises when a generator resumes leaves the interpreter inside that generator.
        if code.co_name not in OF_WITH and not code.co_flags & inspect.CO_GENERATOR:
            boundary()
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before = None

        def trace_inside(frame, event, argument):
            nonlocal before
            if event == "opcode":
                # A signal is raised by the instruction that notices it, and the trace function by the next one. They
                # differ where a block ends: there, only the trace function would skip the block's `__exit__`.
                notices = before is not None and handler_at(code, before) == handler_at(code, frame.f_lasti)
                before = frame.f_lasti if dis.opname[code.co_code[frame.f_lasti]].startswith(NOTICES_SIGNALS) else None
                if notices and not done:
                    boundary()
            return trace_inside

        return trace_inside

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    except KeyboardInterrupt:
        assert done
    finally:
        sys.settrace(before)
    return done


def sweep(operation, check, most=2000):
    """Interrupt the operation at each boundary in turn; `check` tries it again, and brings all back to the start."""
    for number in range(most):
        was_interrupted = interrupted_at(number, operation)
        check(was_interrupted)
        if not was_interrupted:
            return number
    raise AssertionError(f"not done after {most} boundaries")


class Weights:
    """Memory in a tag, whose contents are known."""

    def __init__(self, allocator):
        self.allocator = allocator
        with allotment.tag("interrupted"):
            self.arrays = [allocator.full(length, number, "int32") for number, length in enumerate((100, 70_000))]

    def awake(self, keep="host"):
        self.allocator.resume("interrupted")
        assert self.allocator.paused() == set()
        self.allocator.inspection.check_invariants()
        if keep == "host":
            assert all((array == number).all() for number, array in enumerate(self.arrays))
        with allotment.tag("interrupted"):
            self.allocator.free(self.allocator.malloc(512))

    def asleep(self, keep="host"):
        self.allocator.pause("interrupted", keep=keep)
        assert self.allocator.paused() == {"interrupted"}
        self.allocator.inspection.check_invariants()
        assert self.allocator.sleep.tags()["interrupted"]["reserved_bytes"] == 0


@SANITIZED
def test_a_pause_that_is_interrupted_anywhere_can_be_tried_again(sanitize):
    with allotment.Allocator("host", sanitize=sanitize) as allocator:
        weights = Weights(allocator)

        def check(was_interrupted):
            weights.asleep()
            weights.awake()

        sweep(lambda: allocator.pause("interrupted"), check)
        weights.arrays.clear()


@SANITIZED
@pytest.mark.parametrize("keep", ["host", "nothing"])
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

        assert sweep(lambda: allocator.share(blocks[0], hold=0), check) > 50
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
