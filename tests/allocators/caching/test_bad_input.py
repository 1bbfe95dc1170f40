"""Bad input raises an error that names the value, and leaves the allocator unchanged.

Every case runs on an allocator in the middle of its life, on plain and on expandable memory. The allocator is then used
to its end: everything in it can still be freed, and returns to the device.
"""

from functools import partial

import numpy
import pytest

from allotment import Allocator, AsyncAllocator
from allotment._devices.simulated.device import SimulatedDevice
from allotment._devices.streams import Stream
from allotment.errors import (
    AddressError,
    AllotmentError,
    OutOfMemoryError,
    PoolError,
    RequestError,
    SettingsError,
    SizeError,
    StreamError,
)
from helpers.engine import GIB, MIB, check, empties, on_device, unchanged


class Life:
    """Return an allocator with something of everything: blocks in use, free, waiting; pools in use and closed."""

    def __init__(self, settings=""):
        self.alloc = on_device(GIB, settings)
        self.block = self.alloc.malloc(MIB)
        self.neighbour = self.alloc.malloc(4096)
        self.freed = self.alloc.malloc(8192)
        self.alloc.free(self.freed)
        self.waiting = self.alloc.malloc(3 * MIB)
        self.alloc.device.launch(7)
        self.alloc.record_stream(self.waiting, 7)
        self.alloc.free(self.waiting)
        self.pool = self.alloc.pool()
        with self.pool:
            self.in_pool = self.alloc.malloc(MIB)
        self.given_up = self.alloc.pool()
        with self.given_up:
            self.held = self.alloc.malloc(MIB)
        self.given_up.close()

    def end(self):
        """Use the allocator to its end: nothing was lost, and requests are served."""
        self.alloc.free(self.alloc.malloc(5 * MIB, 3))
        for address in (self.block, self.neighbour, self.in_pool, self.held):
            self.alloc.free(address)
        self.pool.close()
        empties(self.alloc)


@pytest.fixture(params=["", "expandable_segments:True"])
def life(request):
    life = Life(request.param)
    yield life
    life.end()


def refused(life, error, call, *arguments, names=""):
    with unchanged(life.alloc), pytest.raises(error) as caught:
        call(*arguments)
    assert str(names) in str(caught.value)
    return caught.value


# --- sizes ---


@pytest.mark.parametrize("size", [-1, -512, -(1 << 40), -(1 << 63), -(1 << 70), numpy.int64(-7)])
def test_a_negative_size(life, size):
    assert refused(life, SizeError, life.alloc.malloc, size, names=size).size == size
    refused(life, SizeError, life.alloc.empty, size, names=size)


@pytest.mark.parametrize("size", [1 << 60, (1 << 60) + 1, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200])
def test_an_absurd_size(life, size):
    error = refused(life, OutOfMemoryError, life.alloc.malloc, size, names=size)
    assert error.facts.too_large
    assert error.facts.requested == size


@pytest.mark.parametrize("size", [1.0, 1e9, None, b"512", [512], object(), numpy.float64(8)])
def test_a_size_that_is_not_a_whole_number(life, size):
    refused(life, TypeError, life.alloc.malloc, size)
    refused(life, TypeError, life.alloc.empty, size)


@pytest.mark.parametrize("size", ["", "512", "much", "-1MiB", "1.5B", "20000PiB"])
def test_a_text_that_is_not_a_size(life, size):
    refused(life, SizeError, life.alloc.malloc, size)
    refused(life, SizeError, life.alloc.empty, size)


@pytest.mark.parametrize("size", [True, numpy.int32(1), numpy.uint64(1)])
def test_whatever_counts_as_a_whole_number_is_a_size(life, size):
    address = life.alloc.malloc(size)
    assert address > 0
    life.alloc.free(address)
    check(life.alloc)


def test_size_zero_is_address_zero_and_both_are_harmless(life):
    with unchanged(life.alloc):
        assert life.alloc.malloc(0) == 0
        assert life.alloc.malloc(0, 7) == 0
        assert life.alloc.malloc(numpy.int64(0)) == 0
        life.alloc.free(0)
        life.alloc.record_stream(0, 7)
        life.alloc.empty(0)


# --- addresses ---

ADDRESS_CALLS = {
    "free": lambda life, address: life.alloc.free(address),
    "record_stream": lambda life, address: life.alloc.record_stream(address, 7),
    "base_allocation": lambda life, address: life.alloc.inspection.base_allocation(address),
    "share": lambda life, address: life.alloc.share(address),
}


@pytest.fixture(params=ADDRESS_CALLS)
def takes_an_address(request):
    return ADDRESS_CALLS[request.param]


WRONG_ADDRESSES = {
    "never allocated": lambda life: 4096,
    "one byte in": lambda life: life.block + 1,
    "a block in": lambda life: life.block + 512,
    "the free rest of a segment": lambda life: life.freed,
    "freed and waiting": lambda life: life.waiting,
    "one before": lambda life: life.block - 1,
    "at the end": lambda life: life.neighbour + 4096,
    "the top": lambda life: (1 << 64) - 1,
    "the upper half": lambda life: 1 << 63,
}


@pytest.mark.parametrize("which", WRONG_ADDRESSES)
def test_an_address_that_no_block_in_use_begins_at(life, takes_an_address, which):
    address = WRONG_ADDRESSES[which](life)
    error = refused(life, AddressError, takes_an_address, life, address, names="invalid device pointer")
    assert error.address == address


@pytest.mark.parametrize("address", [-1, -(1 << 40), -(1 << 80), 1 << 64, 1 << 200])
def test_a_number_that_is_not_an_address(life, takes_an_address, address):
    error = refused(life, AddressError, takes_an_address, life, address, names=address)
    assert error.address == address
    refused(life, AddressError, takes_an_address, life, numpy.int64(-3), names=-3)


@pytest.mark.parametrize("address", [1.0, None, "0x1000", b"\0", object()])
def test_an_address_that_is_not_a_number(life, takes_an_address, address):
    refused(life, TypeError, takes_an_address, life, address)


def test_address_zero_has_no_base_and_cannot_be_shared(life):
    for call in (life.alloc.inspection.base_allocation, life.alloc.share):
        refused(life, AddressError, call, 0)


def test_a_block_freed_twice(life):
    address = life.alloc.malloc(MIB, 5)
    life.alloc.free(address)
    refused(life, AddressError, life.alloc.free, address, names=hex(address))


def test_a_block_past_the_cache_freed_twice(life):
    life.alloc.pools.caching = False
    address = life.alloc.malloc(1000)
    life.alloc.free(address)
    refused(life, AddressError, life.alloc.free, address)
    life.alloc.pools.caching = True


def test_a_block_of_another_allocator(life):
    other = Life()
    for _ in range(3):  # the devices give equal addresses to equal requests
        foreign = other.alloc.malloc(40 * MIB)
    refused(life, AddressError, life.alloc.free, foreign)
    check(other.alloc)


def test_a_buffer_of_another_allocator(life):
    other = Life()
    for _ in range(3):
        foreign = other.alloc.malloc(40 * MIB)
    buffer = other.alloc.empty(40 * MIB)
    refused(life, AddressError, life.alloc.record_stream, buffer, 7)
    other.alloc.free(foreign)


# --- streams ---


@pytest.mark.parametrize("stream", [-1, -(1 << 70), (1 << 64) - 1, 1 << 64, 1 << 200, numpy.int64(-1)])
def test_a_number_that_is_not_a_stream(life, stream):
    refused(life, StreamError, life.alloc.malloc, 512, stream, names=stream)
    refused(life, StreamError, life.alloc.record_stream, life.block, stream, names=stream)


@pytest.mark.parametrize("stream", [1.5, "main", object(), [0]])
def test_an_invalid_stream(life, stream):
    refused(life, TypeError, life.alloc.malloc, 512, stream, names=type(stream).__name__)
    refused(life, TypeError, life.alloc.record_stream, life.block, stream, names=type(stream).__name__)


def test_a_destroyed_stream(life):
    stream = Stream(life.alloc)
    stream.destroy()
    refused(life, StreamError, life.alloc.malloc, 512, stream, names="destroyed")
    refused(life, StreamError, life.alloc.record_stream, life.block, stream, names="destroyed")
    refused(life, StreamError, life.alloc.empty, 512, stream, names="destroyed")


def test_a_stream_of_another_device(life):
    other = SimulatedDevice(GIB, 1)
    stream = Stream(other)
    refused(life, StreamError, life.alloc.malloc, 512, stream, names=other.name)
    refused(life, StreamError, life.alloc.record_stream, life.block, stream, names=other.name)


# --- settings ---

WRONG_SETTINGS = {
    "nonsense:1": "nonsense",
    "foo:1,bar:2": "foo",
    "max_split_size_mb": "max_split_size_mb",
    "max_split_size_mb:": "missing after",
    "max_split_size_mb=40": "max_split_size_mb=40",
    "max_split_size_mb,40": "max_split_size_mb",
    "max_split_size_mb:2": "'2'",
    "max_split_size_mb:-1": "'-1'",
    "max_split_size_mb:40abc": "'40abc'",
    "max_split_size_mb:40.9": "'40.9'",
    "max_split_size_mb:99999999999999999999999": "max_split_size_mb",
    "max_split_size_mb:40;expandable_segments:True": "40;expandable_segments",
    "garbage_collection_threshold:1.2": "'1.2'",
    "garbage_collection_threshold:0": "'0'",
    "garbage_collection_threshold:nan": "'nan'",
    "large_segment_size_mb:10": "'10'",
    "max_split_size_mb:25,large_segment_size_mb:30": "'25'",
    "expandable_segments:yes": "'yes'",
    "expandable_segments:true": "'true'",
    "release_lock_on_cudamalloc:1": "'1'",
    "pinned_num_register_threads:none": "'none'",
    "pinned_num_register_threads:1024": "'1024'",
    "roundup_power2_divisions:3": "'3'",
    "roundup_power2_divisions:[64:8": "no closing",
    "roundup_power2_divisions:[64:3]": "roundup_power2_divisions",
    "roundup_power2_divisions:[0:4]": "roundup_power2_divisions",
    "per_process_memory_fraction:2": "'2'",
    "backend:cudaMallocAsync": "backend",
    ":": "",
    ",": "",
    "expandable_segments:True,,": "",
}


@pytest.mark.parametrize("text", WRONG_SETTINGS)
def test_a_settings_string_that_cannot_be_read(life, text):
    refused(life, SettingsError, setattr, life.alloc, "settings", text, names=WRONG_SETTINGS[text])


@pytest.mark.parametrize("text", [text for text in WRONG_SETTINGS if "backend" not in text])
def test_an_allocator_is_not_made_with_settings_that_cannot_be_read(text):
    device = SimulatedDevice(GIB)
    with pytest.raises(SettingsError):
        Allocator(device, settings=text)
    assert sum(device.calls.values()) == 0


@pytest.mark.parametrize("text", [None, 7, b"expandable_segments:True"])
def test_settings_that_are_no_text(life, text):
    refused(life, TypeError, setattr, life.alloc, "settings", text)


# --- limits ---


@pytest.mark.parametrize("limit", [-1, 1 << 64, "12 parsecs", "-5MiB", "", 1.5, float("nan"), b"1MiB", True])
def test_a_limit_that_is_not_a_size(life, limit):
    def set_it():
        life.alloc.limit = limit

    refused(life, SettingsError, set_it, names=limit)


@pytest.mark.parametrize("fraction", [-0.1, 1.0001, 2, float("nan"), float("inf")])
def test_a_fraction_outside_0_to_1(life, fraction):
    def set_it():
        life.alloc.limits.memory_fraction = fraction

    refused(life, RequestError, set_it, names=fraction)


@pytest.mark.parametrize("fraction", [None, "0.5", []])
def test_a_fraction_that_is_not_a_number(life, fraction):
    def set_it():
        life.alloc.limits.memory_fraction = fraction

    refused(life, TypeError, set_it)


# --- pools ---

POOL_CALLS = {
    "release": lambda alloc, pool: alloc.pools.release(pool),
    "use count": lambda alloc, pool: alloc.pools.use_count(pool),
    "reserved bytes": lambda alloc, pool: alloc.pools.reserved_bytes(pool),
    "use on oom": lambda alloc, pool: alloc.pools.set_use_on_oom(pool, True),
    "no split": lambda alloc, pool: alloc.pools.set_no_split(pool),
    "end": lambda alloc, pool: alloc.pools.end_allocate_to_pool(pool),
    "live": lambda alloc, pool: alloc.pools.check_live_allocations(pool, []),
    "checkpoint": lambda alloc, pool: alloc.pools.checkpoint(pool),
}
MAKING_CALLS = {
    "create": lambda alloc, pool: alloc.pools.create_or_incref(pool),
    "begin": lambda alloc, pool: alloc.pools.begin_allocate_to_pool(pool),
}
NO_IDS = [(0, 0), (3, 4), (1 << 62, 0), (0, (1 << 64) - 1), (-1, 0), (0, 1 << 64)]
NO_PAIRS = [None, 7, "01", (1,), (1, 2, 3), (0, 1.5), ("a", "b"), ()]


@pytest.mark.parametrize("call", POOL_CALLS)
@pytest.mark.parametrize("pool", [(0, 10**9), (10**9, 0)])
def test_a_pool_that_does_not_exist(life, call, pool):
    refused(life, PoolError, POOL_CALLS[call], life.alloc, pool)


@pytest.mark.parametrize("call", POOL_CALLS | MAKING_CALLS)
@pytest.mark.parametrize("pool", [*NO_IDS, *NO_PAIRS], ids=repr)
def test_an_invalid_pool_id(life, call, pool):
    if (call, pool) == ("reserved bytes", (0, 0)):
        return  # the default pools have memory too
    refused(life, PoolError, (POOL_CALLS | MAKING_CALLS)[call], life.alloc, pool)


@pytest.mark.parametrize("pool", NO_PAIRS, ids=repr)
def test_an_invalid_pool_id_where_the_default_pool_is_valid(life, pool):
    for call in (life.alloc.empty_cache, life.alloc.history.segments, life.alloc.snapshot):
        refused(life, PoolError, call, pool)


def test_an_id_that_differs_from_a_pools_in_one_half(life):
    """At most one half of an id is not 0; the other half must not be overlooked."""
    life.alloc.pools.create_or_incref((12345, 0))
    for call in POOL_CALLS.values():
        refused(life, PoolError, call, life.alloc, (12345, 1))
    life.alloc.pools.release((12345, 0))


def test_a_pool_that_has_been_closed(life):
    pool = life.given_up
    for call in (
        lambda: life.alloc.pools.release(pool.id),
        lambda: life.alloc.pools.create_or_incref(pool.id),
        lambda: life.alloc.pools.begin_allocate_to_pool(pool.id),
        lambda: life.alloc.pools.checkpoint(pool.id),
    ):
        refused(life, PoolError, call, names="last user")
    refused(life, PoolError, pool.__enter__, names="closed")


def test_a_route_that_is_begun_twice_or_never(life):
    refused(life, PoolError, life.alloc.pools.end_allocate_to_pool, life.pool.id, names="no requests are being routed")
    with life.pool:
        refused(life, PoolError, life.pool.__enter__, names="already")
    assert life.pool.use_count == 1


@pytest.mark.parametrize("condition", ["stream", "thread", "capture"])
@pytest.mark.parametrize("value", [-1, 1 << 64, 1.5, "x"])
def test_a_route_with_an_invalid_condition(life, condition, value):
    error = RequestError if isinstance(value, int) else TypeError
    refused(life, error, lambda: life.alloc.pools.begin_allocate_to_pool(life.pool.id, **{condition: value}))
    assert life.pool.use_count == 1


# --- devices ---


@pytest.mark.parametrize(
    "name", ["", "gpu", "cuda:x", "sim", "sim:", "sim:lots", "sim:-1GiB", "sim:0", "sim:80", "host:1"]
)
def test_a_device_name_that_names_none(name):
    with pytest.raises(AllotmentError):
        Allocator(name)


@pytest.mark.parametrize("device", [None, 7, b"host"])
def test_an_invalid_device(device):
    with pytest.raises((TypeError, RequestError)):
        Allocator(device)


@pytest.mark.parametrize("settings", [5, b"backend:native", {"backend": "native"}])
def test_invalid_settings(settings):
    for make in (Allocator, AsyncAllocator):
        with pytest.raises(TypeError, match="settings must be a text or a Settings, not"):
            make("sim:1GiB", settings=settings)


@pytest.mark.parametrize("capacity", [0, -1, 1 << 60])
def test_a_simulated_device_needs_a_capacity(capacity):
    with pytest.raises(RequestError, match=r"capacity|invalid size"):
        SimulatedDevice(capacity)


@pytest.mark.parametrize("index", [-1, 1 << 16, 1 << 40])
def test_a_device_of_no_index(life, index):
    refused(life, RequestError, life.alloc.sharing.enable_peer_access, index, names=index)
    copy = partial(life.alloc.copy, life.block, life.neighbour, 1, source_device=index)
    refused(life, RequestError, copy, names=index)


@pytest.mark.parametrize("size", [-1, 1 << 64])
def test_a_copy_of_no_number_of_bytes(life, size):
    refused(life, SizeError, life.alloc.copy, life.block, life.neighbour, size, names=size)


def test_what_is_not_callable(life):
    limits, history = life.alloc.limits, life.alloc.history
    attaches = (limits.attach_out_of_memory_observer, history.attach_trace_tracker, limits.add_free_memory_callback)
    for attach in attaches:
        refused(life, TypeError, attach, 5, names="must be callable, not int")
