"""Ctrl-C while a block of another process is opened, at every place where Python notices it."""

import math
import pickle

import pytest

from allotment import Allocator, Buffer, multiprocessing, open_shared, open_shared_torch
from allotment._allocators import opened
from allotment._devices import open_device
from allotment._sharing import owner
from allotment._sharing.pickling import hold_of_pickles
from helpers.interrupted import sweep
from helpers.peer import Peer, descriptors, everything_is_closed, mappings, wait_until

pytestmark = pytest.mark.threads
DRAWN = 8  # places in `make test`, always the same; None means all
ALL = pytest.param(None, marks=pytest.mark.slow, id="all")
PLACES = pytest.mark.parametrize("drawn", [pytest.param(DRAWN, id="drawn"), ALL])
PLAIN, EXPANDABLE = "", ",expandable_segments:True"
SETTINGS_AND_PLACES = pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        pytest.param(EXPANDABLE, DRAWN, id="drawn"),
        pytest.param(PLAIN, None, marks=pytest.mark.slow, id="plain"),
        pytest.param(EXPANDABLE, None, marks=pytest.mark.slow, id="expandable"),
    ],
)
MIB = 1 << 20


def shared_blocks(allocator, count):
    """Return blocks filled with the numbers from 1 on, and their handles."""
    blocks = [allocator.empty(3 * MIB) for _ in range(count)]
    for number, block in enumerate(blocks, 1):
        memoryview(block)[:] = bytes([number]) * len(block)
    return blocks, [allocator.share(block, hold=math.inf) for block in blocks]


@SETTINGS_AND_PLACES
def test_an_opening_that_is_interrupted_anywhere_leaves_nothing_open_and_later_ones_get_their_own_block(
    settings, drawn
):
    with Peer() as peer:
        handles = peer.run(
            """
            from sharing.test_interrupts import shared_blocks
            from allotment._sharing import owner
            allocator = Allocator("host", settings="shareable:True" + settings)
            blocks, result = shared_blocks(allocator, 3)
            """,
            settings=settings,
        )
        keeps_the_link = open_shared(handles[0])

        def open_now():
            """Return what is open after another block was opened and closed."""
            with open_shared(handles[2]) as other:
                assert set(bytes(memoryview(other))) == {3}
            count = "result = sorted(entry.leases for entry in owner._owner.entries.values())"
            wait_until(lambda: peer.run(count) == [0, 0, 1])
            return descriptors(), mappings()

        before = open_now()

        def check(was_interrupted):
            # Fewer, if objects of an earlier test end meanwhile.
            assert all(now <= then for now, then in zip(open_now(), before, strict=True))

        # The number of places depends on the version of Python: 3.14 has the fewest.
        assert sweep(lambda: open_shared(handles[1]).close(), check, drawn=drawn) > 10
        keeps_the_link.close()
        wait_until(everything_is_closed)


@SETTINGS_AND_PLACES
def test_an_opening_in_the_owners_process_that_is_interrupted_anywhere_leaves_nothing_open(settings, drawn):
    with Allocator("host", settings="shareable:True" + settings) as allocator:
        blocks, handles = shared_blocks(allocator, 1)

        def check(was_interrupted):
            with open_shared(handles[0]) as opened:
                assert set(bytes(memoryview(opened))) == {1}
            wait_until(lambda: [entry.leases for entry in owner._owner.entries.values()] == [0])

        sweep(lambda: open_shared(handles[0]).close(), check, drawn=drawn)
        handles[0].close()
        blocks.clear()


def test_an_interrupt_that_is_noticed_when_the_buffer_exists_is_what_the_caller_gets(monkeypatch):
    def noticed_behind(*arguments):
        Buffer(*arguments)
        raise KeyboardInterrupt

    with Allocator("host", settings="shareable:True") as allocator:
        blocks, handles = shared_blocks(allocator, 1)
        monkeypatch.setattr(opened, "Buffer", noticed_behind)
        with pytest.raises(KeyboardInterrupt):
            open_shared(handles[0])
        wait_until(lambda: [entry.leases for entry in owner._owner.entries.values()] == [0])
        handles[0].close()
        blocks.clear()


@PLACES
def test_opening_what_pytorch_shared_and_being_interrupted_anywhere_leaves_nothing_mapped(drawn):
    with Peer() as peer:
        offset, handle, size = peer.run(
            """
            allocator = Allocator("host", settings="shareable:True,expandable_segments:True")
            block = allocator.empty(30 << 20)
            result = (*allocator.share_torch(block), len(block))
            """
        )
        # Opened once, because opening a device reads all mounts of the system.
        device = open_device("host", shareable=True)
        open_shared_torch(handle, offset, size, device=device).close()
        wait_until(everything_is_closed)
        before = descriptors()

        def check(was_interrupted):
            # The thread that does the step may still run after the interrupt has ended the wait for it.
            wait_until(lambda: everything_is_closed() and descriptors() <= before)

        sweep(lambda: open_shared_torch(handle, offset, size, device=device).close(), check, drawn=drawn)


@PLACES
def test_sending_a_block_on_and_being_interrupted_anywhere_leaves_the_link_in_order(drawn):
    with Peer() as peer:
        handles = peer.run(
            """
            from sharing.test_interrupts import shared_blocks
            allocator = Allocator("host", settings="shareable:True")
            blocks, result = shared_blocks(allocator, 2)
            """
        )
        received = open_shared(handles[0])

        def send():
            with multiprocessing.sharing(math.inf):
                pickle.dumps(received)

        def check(was_interrupted):
            assert hold_of_pickles() is None
            with open_shared(handles[1]) as other:
                assert set(bytes(memoryview(other))) == {2}

        sweep(send, check, drawn=drawn)
        received.close()
        wait_until(everything_is_closed)
