"""The table of C functions over a PinnedAllocator, called as C code calls it: without the interpreter lock."""

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import allotment
from allotment._allocators.pinned.points import points_address, points_form
from helpers.cuda_like_device import CudaLikeDevice

MIB = 1 << 20
CONTEXT, ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
CURRENT = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int)
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_uint64] * 4)
VISITOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int,
                           ctypes.c_uint64, ctypes.c_uint64)  # fmt: skip
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")


def function(*arguments, result=ctypes.c_int):
    return ctypes.CFUNCTYPE(result, CONTEXT, *arguments)


class Points(ctypes.Structure):
    """`allotment_pinned_points`."""

    _fields_ = (
        ("size", SIZE),
        ("version", ctypes.c_uint32),
        ("device", ctypes.c_int),
        ("context", CONTEXT),
        ("allocate", function(SIZE, result=ADDRESS)),
        ("free", function(ADDRESS)),
        ("is_lent", function(ADDRESS)),
        ("record_stream", function(ADDRESS, ADDRESS)),
        ("empty_cache", function()),
        ("begin_allocate_to_pool", function(ADDRESS, ADDRESS, CONTEXT, CONTEXT, CONTEXT)),
        ("end_allocate_to_pool", function(ADDRESS, ADDRESS)),
        ("release_pool", function(ADDRESS, ADDRESS)),
        ("stats", function(CONTEXT)),
        ("reset", function(ctypes.c_int)),
        ("visit", function(VISITOR, CONTEXT)),
        ("listen", function(CONTEXT, CONTEXT, result=None)),
        ("configure", function(CONTEXT)),
        ("follow_current_stream", function(CURRENT, result=None)),
        ("last_error", function(ctypes.c_char_p, SIZE, ctypes.POINTER(ctypes.c_int), result=SIZE)),
    )

    def call(self, name, *arguments):
        return getattr(self, name)(self.context, *arguments)

    def said(self):
        text = ctypes.create_string_buffer(512)
        self.call("last_error", text, 511, None)
        return text.value.decode()

    def blocks(self):
        found = []
        visit = VISITOR(lambda _, address, size, allocated, active, *pool: found.append((address, allocated, active)))
        assert self.call("visit", visit, None)
        return sorted(found)


@pytest.fixture
def device():
    return CudaLikeDevice()


@pytest.fixture
def made(device):
    """Make a table. An allocator with a table is never deleted, so the device is emptied at the end."""
    all_made = []

    def made(mode, **arguments):
        pinned = allotment.PinnedAllocator(device, mode=mode, **arguments)
        all_made.append(Points.from_address(points_address(pinned)))
        return all_made[-1]

    yield made
    for points in all_made:
        points.call("empty_cache")


@pytest.fixture(params=["torch", "tight"])
def points(made, request):
    return made(request.param)


def test_the_table_has_the_form_that_is_promised(points):
    assert points_form() == (1, ctypes.sizeof(Points)) == (points.version, points.size)


def test_the_allocator_lives_as_long_as_the_table(points):
    gc.collect()
    address = points.call("allocate", 3000)
    assert points.call("is_lent", address) and points.call("free", address)
    assert not points.call("is_lent", address)


def test_memory_waits_for_the_streams_recorded(device, points):
    stream = device.stream_create()
    address = points.call("allocate", 1000)
    assert points.call("record_stream", address, stream)
    copy = device.hold(stream)
    assert points.call("free", address)
    other = points.call("allocate", 1000)
    assert other != address
    copy.release()
    assert points.call("allocate", 1000) == address


def test_an_event_is_recorded_at_the_free_when_a_framework_asks(device, made):
    points = made("torch")
    keep = CURRENT(lambda device: 0)
    points.call("follow_current_stream", keep)
    stream = device.stream_create()
    address = points.call("allocate", 1000)
    points.call("record_stream", address, stream)
    points.call("free", address)
    later = device.hold(stream)
    assert points.call("allocate", 1000) == address  # what came after the free does not matter
    later.release()


def test_a_failure_has_a_text_and_foreign_addresses_are_distinguished(points):
    assert points.call("free", 0x1000) == 0
    kind = ctypes.c_int()
    text = ctypes.create_string_buffer(512)
    assert points.call("last_error", text, 511, ctypes.byref(kind)) > 0 and kind.value == 2
    assert points.call("allocate", 1 << 60) == 0
    assert points.call("last_error", text, 511, ctypes.byref(kind)) > 0 and kind.value == 1


def test_pools_are_separate_and_end_with_their_last_block(device, made):
    points = made("torch")
    assert points.call("begin_allocate_to_pool", 0, 7, None, None, None)
    assert not points.call("begin_allocate_to_pool", 0, 7, None, None, None)
    assert "already recording" in points.said()
    inside = points.call("allocate", 1000)
    points.call("free", inside)
    assert points.call("end_allocate_to_pool", 0, 7)
    assert not points.call("end_allocate_to_pool", 0, 7)
    assert points.call("allocate", 1000) != inside
    points.call("empty_cache")
    assert inside in device.pinned
    assert points.call("release_pool", 0, 7)
    points.call("empty_cache")
    assert inside not in device.pinned
    assert not points.call("release_pool", 0, 7)


def test_a_listener_gets_every_action_in_order(points):
    reported = []
    listener = LISTENER(lambda _, action, address, *others: reported.append((ACTIONS[action], address)))
    points.call("listen", ctypes.cast(listener, CONTEXT), None)
    address = points.call("allocate", 30 * MIB)
    points.call("free", address)
    points.call("empty_cache")
    points.call("listen", None, None)
    points.call("free", points.call("allocate", 1000))
    names = ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert reported == [(name, address) for name in names]


def test_a_visitor_sees_blocks_in_use_waiting_and_kept(device, made):
    points = made("torch")
    lent, kept, waiting = (points.call("allocate", 1000) for _ in range(3))
    stream = device.stream_create()
    copy = device.hold(stream)
    points.call("record_stream", waiting, stream)
    points.call("free", waiting)
    points.call("free", kept)
    assert points.blocks() == sorted([(lent, 1, 1), (kept, 0, 0), (waiting, 0, 1)])
    copy.release()


@pytest.mark.threads
def test_threads_that_do_not_hold_the_interpreter_lock_never_share_a_block(points):
    def work(number):
        for _ in range(200):
            mine = [points.call("allocate", 1000 * number + 1) for _ in range(4)]
            assert len(set(mine)) == 4 and 0 not in mine
            for address in mine:
                assert points.call("free", address)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 5)))
    assert not any(allocated for _, allocated, _ in points.blocks())
