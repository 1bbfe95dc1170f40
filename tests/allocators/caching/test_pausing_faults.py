"""Each call of a pause and of a resume fails, once or permanently: afterwards the tag is wholly asleep or wholly awake.
The device is written in Python and forwards its calls to host memory, so contents can be lost. Copies go through its
streams and its pinned memory, as a GPU's do.
"""

import ctypes
import errno
import os
import signal
from collections import Counter
from contextlib import suppress

import pytest

import allotment
from allotment._allocators.caching import copying
from allotment.devices import HostDevice
from allotment.errors import AllotmentError, OutOfMemoryError
from helpers.effort import sample
from helpers.faulty import faulty, no_faults
from helpers.relay_device import RelayDevice

KIB = 1 << 10
PLACES = {
    "host": {},
    "kept on the host": {"keep_host": True},
    "file": {"keep": "file"},
}
EVERY_PLACE = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


class CopyingRelay(RelayDevice):
    """A device with streams, pinned memory, and copies that are done only when a caller waits for them.

    `early` is memory that was freed before a copy from or to it was done.
    """

    def __init__(self, device):
        super().__init__(device)
        self.queued = {}
        self.done = Counter()  # copies of each stream
        self.recorded = {}  # the stream of each event, and how many of its copies come before
        self.early = []

    def stream_create(self):
        return self._give("streams", 1, self._relay("stream_create"))

    def stream_destroy(self, stream):
        self._relay("stream_destroy", stream)
        self.held["streams"] -= 1

    def event_create(self):
        return self._give("events", 1, self._relay("event_create"))

    def event_destroy(self, event):
        self._relay("event_destroy", event)
        self.held["events"] -= 1

    def copy(self, destination, source, size, destination_device, source_device, stream):
        self.queued.setdefault(stream, []).append((destination, source, size))

    def _do_first(self, stream, count):
        for _ in range(count):
            ctypes.memmove(*self.queued[stream].pop(0))
        self.done[stream] += count

    def stream_synchronize(self, stream):
        self._do_first(stream, len(self.queued.get(stream, ())))

    def event_record(self, event, stream):
        self._relay("event_record", event, stream)
        self.recorded[event] = stream, self.done[stream] + len(self.queued.get(stream, ()))

    def event_synchronize(self, event):
        stream, end = self.recorded[event]
        self._do_first(stream, max(end - self.done[stream], 0))

    def device_synchronize(self):
        for stream in list(self.queued):
            CopyingRelay.stream_synchronize(self, stream)

    def _note_if_early(self, address, size):
        for destination, source, length in (copy for copies in self.queued.values() for copy in copies):
            if any(place < address + size and address < place + length for place in (destination, source)):
                self.early.append((address, size))

    def unmap(self, address, size):
        self._note_if_early(address, size)
        super().unmap(address, size)

    def pinned_allocate(self, size):
        return self._give("pinned", 1, self._relay("pinned_allocate", size))

    def pinned_free(self, address):
        self._note_if_early(address, 1)
        self._relay("pinned_free", address)
        self.held["pinned"] -= 1


FaultyDevice = faulty(CopyingRelay)


@pytest.fixture(autouse=True)
def small_spans():
    """Several spans for each block, copied by one thread, so that calls come in the same order each time."""
    copying.choose(lanes=1, span=512 * KIB)
    yield
    copying.choose()


class Model:
    """Return a tag with its own pool and one of a capture, and their known bytes."""

    def __init__(self):
        self.device = FaultyDevice(HostDevice())
        self.alloc = allotment.Allocator(self.device)
        with allotment.tag("model"):
            pool = self.alloc.pool()
            self.blocks = {self.alloc.malloc(size): size for size in (1_200 * KIB, 700, 300 * KIB)}
            with pool:
                self.blocks[self.alloc.malloc(200 * KIB)] = 200 * KIB
        self.pool = pool
        self.lost = False
        for number, (address, size) in enumerate(self.blocks.items()):
            ctypes.memmove(address, self.contents(number, size), size)

    @staticmethod
    def contents(number, size):
        return (bytes(range(number, number + 251)) * (size // 251 + 1))[:size]

    def is_right(self):
        return all(
            ctypes.string_at(address, size) == self.contents(number, size)
            for number, (address, size) in enumerate(self.blocks.items())
        )

    def check_whole(self):
        """Check that it is wholly asleep, or wholly awake with its contents; return which."""
        self.device.faults = no_faults
        self.alloc.inspection.check_invariants()
        asleep = self.alloc.paused() == {"model"}
        if not asleep:
            assert self.alloc.paused() == set()
            assert self.alloc.sleep.tags()["model"]["paused"] == 0
            assert self.is_right()
        return asleep

    def end(self):
        for address in self.blocks:
            self.alloc.free(address)
        self.pool.close()
        self.alloc.close()
        assert not self.device.early or self.lost
        left = +self.device.held
        # Buffers are not reused for copies whose end the device never reported.
        assert not left or (self.lost and set(left) == {"pinned", "streams", "events"})


def faults(number, times, kind):
    """Make calls fail from the n-th one on, `times` of them."""
    first = None

    def fault(call, method):
        nonlocal first
        first = call if first is None else first
        return kind("refused") if number <= call - first < number + times else None

    return fault


TIMES = pytest.mark.parametrize("times", [1, 1 << 60], ids=["once", "for good"])
KINDS = pytest.mark.parametrize("kind", [RuntimeError, MemoryError])


def calls_of(place, operation):
    """Return how many calls of the device a pause or resume makes if none fails."""
    model = Model()
    counts = {}
    for name, act in (
        ("pause", lambda: model.alloc.pause("model", **place)),
        ("resume", lambda: model.alloc.resume("model")),
    ):
        before = model.device.calls
        act()
        counts[name] = model.device.calls - before
    model.end()
    return counts[operation]


@EVERY_PLACE
@TIMES
@KINDS
def test_whichever_call_of_a_pause_fails_the_tag_is_whole_and_can_be_paused_again(place, times, kind):
    calls = calls_of(place, "pause")
    assert calls > 20
    for number in sample(range(calls)):
        model = Model()
        model.lost = times > 1
        model.device.faults = faults(number, times, kind)
        with suppress(AllotmentError):
            model.alloc.pause("model", **place)
        model.check_whole()
        model.alloc.pause("model", **place)  # from the start, or what the device refused to take
        assert model.alloc.stats()["reserved_bytes.all.current"] == 0
        assert model.check_whole(), f"after call {number}"
        model.alloc.resume("model")
        assert not model.check_whole(), f"after call {number}"
        model.end()


@EVERY_PLACE
@TIMES
@KINDS
def test_whichever_call_of_a_resume_fails_the_tag_is_whole_and_can_be_resumed_again(place, times, kind):
    calls = calls_of(place, "resume")
    assert calls > 20
    for number in sample(range(calls)):
        model = Model()
        model.lost = times > 1
        model.alloc.pause("model", **place)
        model.device.faults = faults(number, times, kind)
        failed = False
        try:
            model.alloc.resume("model")
        except AllotmentError as error:
            assert "refused" in str(error) or isinstance(error, OutOfMemoryError)
            failed = True
        assert model.check_whole() == failed, f"after call {number}"
        model.alloc.resume("model")
        assert not model.check_whole(), f"after call {number}"
        model.end()


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="the system writes no files at an offset")
def test_a_disk_that_fails_under_a_pause_leaves_the_tag_awake(tmp_path, monkeypatch):
    import resource

    model = Model()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600 * KIB, before[1]))
    try:
        with pytest.raises(OSError, match="file for paused memory") as caught:
            model.alloc.pause("model", keep="file", folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert caught.value.errno == errno.EFBIG
    assert not model.check_whole()
    model.alloc.pause("model", keep="file", folder=tmp_path)
    model.alloc.resume("model")
    assert not model.check_whole()
    model.end()
