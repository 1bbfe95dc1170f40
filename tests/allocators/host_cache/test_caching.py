"""The caching allocator for host memory, rule by rule."""

import ctypes
import gc
import weakref

import pytest

from allotment._allocators.host_cache import cache as cpu
from allotment.errors import AddressError, DeviceError, OutOfMemoryError, RequestError, SizeError
from helpers.cpu_entry_points import EntryPoints, table_of
from helpers.scripted_memory import ScriptedMemory
from helpers.threads import in_a_thread


@pytest.fixture
def memory():
    return ScriptedMemory()


@pytest.fixture
def cache(memory):
    return cpu.CachingAllocator(system=memory)


@pytest.fixture
def checked(memory):
    return cpu.CachingAllocator(checked=True, system=memory)


@pytest.fixture
def no_fill():
    yield
    cpu.set_fill()


# --- allocating and freeing ----------------------------------------------------------------------------------


def test_a_request_gets_the_most_recently_freed_memory_of_its_size(cache):
    first, second = cache.allocate(100), cache.allocate(100)
    cache.free(first)
    cache.free(second)
    assert [cache.allocate(100), cache.allocate(100)] == [second, first]


def test_sizes_are_not_rounded(cache, memory):
    cache.free(cache.allocate(100))
    assert cache.allocate(101) != cache.allocate(99)
    assert memory.calls == [("allocate", 100), ("allocate", 101), ("allocate", 99)]
    assert cache.cached_bytes == 100


def test_a_free_does_not_call_the_system(cache, memory):
    address = cache.allocate(100)
    cache.free(address)
    assert memory.calls == [("allocate", 100)]
    assert cpu.recorded_size(address) == 100


def test_size_zero_follows_the_system_and_is_recorded(cache, memory):
    assert cache.allocate(0) == 0
    assert cpu.recorded_size(0) == 0
    cache.free(0)
    assert cache.allocate(0) == 0
    assert memory.calls == [("allocate", 0)]
    cpu.record_free(0)
    assert cpu.recorded_size(0) is None


def test_freeing_nothing_is_fine_at_any_time(cache, checked, memory):
    for allocator in (cache, checked):
        allocator.free(0)
        allocator.free(0)
        allocator.allocate(0)
        allocator.free(0)
        allocator.free(0)
        allocator.empty_cache()
    cpu.free(0)
    assert memory.freed() == []


def test_memory_is_aligned_to_a_cache_line():
    cache = cpu.CachingAllocator()
    addresses = [cache.allocate(size) for size in (1, 63, 64, 1000, 1 << 20)]
    assert [address % 64 for address in addresses] == [0] * 5
    for address in addresses:
        cache.free(address)


def test_unknown_memory_goes_to_the_system(cache, memory):
    cache.free(0x1234000)
    assert memory.calls == [("free", 0x1234000)]
    assert cache.cached_bytes == 0


def test_memory_of_another_allocator_is_cached_where_it_is_freed(cache, memory):
    other = cpu.CachingAllocator(system=memory)
    address = cache.allocate(100)
    other.free(address)
    assert (cache.cached_bytes, other.cached_bytes) == (0, 100)
    assert cache.allocate(100) != address
    assert other.allocate(100) == address


def test_memory_returns_to_the_system_it_came_from(cache, memory):
    other_memory = ScriptedMemory()
    other = cpu.CachingAllocator(system=other_memory)
    address = cache.allocate(100)
    other.free(address)
    other.empty_cache()
    assert (memory.freed(), other_memory.freed()) == ([address], [])


def test_memory_freed_twice_is_allocated_twice_and_released_once(cache, memory):
    address = cache.allocate(100)
    cache.free(address)
    cache.free(address)
    assert cache.cached_bytes == 200
    assert [cache.allocate(100), cache.allocate(100)] == [address, address]
    cache.free(address)
    cache.free(address)
    cache.empty_cache()
    assert memory.freed() == [address]


def test_memory_freed_into_two_allocators_is_released_by_the_last(cache, memory):
    other = cpu.CachingAllocator(system=memory)
    address = cache.allocate(100)
    cache.free(address)
    other.free(address)
    cache.empty_cache()
    assert memory.freed() == []
    assert cpu.recorded_size(address) is None
    other.empty_cache()
    assert memory.freed() == [address]


def test_counters_count_what_happened(cache, memory):
    kept = cache.allocate(100)
    cache.free(kept)
    cache.free(cache.allocate(100))
    cache.free(0x1234000)
    memory.failures = [None]
    cache.allocate(200)
    assert cache.stats() == {
        "hits": 1,
        "misses": 2,
        "retries": 1,
        "cached_frees": 2,
        "system_frees": 1,
        "cached_blocks": 0,
        "cached_bytes": 0,
    }


# --- declared as freed outside -------------------------------------------------------------------------------


def test_after_record_free_the_system_gets_the_memory(cache, memory):
    address = cache.allocate(100)
    cpu.record_free(address)
    assert memory.freed() == []
    assert cpu.recorded_size(address) is None
    cache.free(address)
    assert memory.freed() == [address]
    assert cache.cached_bytes == 0


def test_record_free_of_unknown_memory_does_nothing(memory):
    cpu.record_free(0x1234000)
    assert memory.calls == []


def test_record_free_does_not_change_the_free_lists(cache, memory):
    address = cache.allocate(100)
    cache.free(address)
    cpu.record_free(address)
    assert cache.allocate(100) == address
    cache.free(address)
    assert memory.freed() == [address]


def test_an_address_that_the_system_gives_again_has_its_new_size(cache, memory):
    address = cache.allocate(100)
    memory.reusable = [address]
    assert cache.allocate(300) == address
    cache.free(address)
    assert cache.allocate(100) != address
    assert cache.allocate(300) == address


# --- failure and release -------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, MemoryError("full")])
def test_a_failing_system_gets_everything_cached_and_is_asked_once_more(cache, memory, failure):
    cached = [cache.allocate(size) for size in (100, 100, 200)]
    kept = cache.allocate(100)
    for address in cached:
        cache.free(address)
    memory.calls.clear()
    memory.failures = [failure]
    assert cache.allocate(300) != 0
    assert memory.calls[0] == memory.calls[-1] == ("allocate", 300)
    assert sorted(memory.calls[1:-1]) == [("free", address) for address in sorted(cached)]
    assert [cpu.recorded_size(address) for address in cached] == [None] * 3
    assert cpu.recorded_size(kept) == 100
    assert cache.cached_bytes == 0


def test_a_second_failure_propagates(cache, memory):
    cache.free(cache.allocate(100))
    reason = MemoryError("the second one")
    memory.failures = [MemoryError("the first one"), reason]
    with pytest.raises(OutOfMemoryError, match="Out of memory on cpu: 300 bytes requested") as caught:
        cache.allocate(300)
    assert caught.value.__cause__ is reason
    assert isinstance(caught.value, MemoryError)
    assert memory.calls.count(("allocate", 300)) == 2
    assert cache.allocate(300) != 0


def test_a_failure_releases_no_other_allocator(cache, memory):
    other = cpu.CachingAllocator(system=memory)
    other.free(other.allocate(100))
    memory.failures = [None, None]
    with pytest.raises(OutOfMemoryError) as caught:
        cache.allocate(300)
    assert other.cached_bytes == 100
    assert caught.value.facts.private_free >= 100
    assert memory.freed() == []


def test_a_hit_needs_no_system(cache, memory):
    cache.free(cache.allocate(100))
    memory.failures = [None]
    assert cache.allocate(100) != 0
    assert memory.failures == [None]


def test_a_system_that_fails_otherwise_is_a_device_error(cache, memory):
    reason = RuntimeError("unplugged")
    memory.failures = [reason, reason]
    with pytest.raises(DeviceError, match="unplugged") as caught:
        cache.allocate(100)
    assert caught.value.__cause__ is reason


def test_the_real_system_refuses_what_no_machine_has():
    cache = cpu.CachingAllocator()
    cache.free(cache.allocate(100))
    with pytest.raises(OutOfMemoryError) as caught:
        cache.allocate(1 << 59)
    assert caught.value.facts.requested == 1 << 59
    assert cache.stats()["retries"] == 1
    assert cache.cached_bytes == 0
    with pytest.raises(OutOfMemoryError):
        cpu.allocate(1 << 59)


def test_destruction_releases_what_is_cached_and_nothing_else(memory):
    cache = cpu.CachingAllocator(system=memory)
    cached, in_use = cache.allocate(100), cache.allocate(100)
    cache.free(cached)
    del cache
    assert memory.freed() == [cached]
    assert cpu.recorded_size(cached) is None
    assert cpu.recorded_size(in_use) == 100


def test_an_allocator_in_a_reference_cycle_releases_too(memory):
    cache = cpu.CachingAllocator(system=memory)
    cached = cache.allocate(100)
    cache.free(cached)
    cycle = [cache]
    cycle.append(cycle)
    del cache, cycle
    gc.collect()
    assert memory.freed() == [cached]


def test_emptying_a_cache_leaves_it_usable(cache, memory):
    for size in range(1, 200):
        cache.free(cache.allocate(size))
    cache.empty_cache()
    assert len(memory.freed()) == 199
    assert cache.cached_bytes == 0
    cache.free(cache.allocate(50))
    assert cache.stats()["cached_blocks"] == 1
    cache.check_invariants()


def test_a_system_may_use_the_allocator_it_serves(cache, memory):
    spare = [cache.allocate(10) for _ in range(3)]

    def use_the_cache():
        if spare:
            cache.free(spare.pop())

    memory.on_call = use_the_cache
    memory.failures = [None]
    assert cache.allocate(100) != 0
    cache.check_invariants()


# --- the guard -----------------------------------------------------------------------------------------------


def test_guards_nest_and_restore(cache):
    inner = cpu.CachingAllocator()
    assert cpu.current() is None
    with cpu.caching(cache) as entered:
        assert entered is cpu.current() is cache
        with cpu.caching(inner):
            assert cpu.current() is inner
            with cpu.caching(None) as off:
                assert off is cpu.current() is None
            assert cpu.current() is inner
        assert cpu.current() is cache
    assert cpu.current() is None


def test_a_guard_restores_after_an_exception(cache):
    with pytest.raises(ZeroDivisionError), cpu.caching(cache):
        raise ZeroDivisionError
    assert cpu.current() is None


def test_guards_left_out_of_order_are_refused(cache):
    outer, inner = cpu.caching(cache), cpu.caching(None)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RequestError, match="reverse order"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert cpu.current() is cache
    outer.__exit__(None, None, None)
    with pytest.raises(RequestError, match="reverse order"):
        outer.__exit__(None, None, None)


def test_a_guard_is_entered_once_at_a_time(cache):
    guard = cpu.caching(cache)
    with guard, pytest.raises(RequestError, match="already"):
        guard.__enter__()
    with guard:
        assert cpu.current() is cache


@pytest.mark.threads
def test_a_guard_belongs_to_its_thread(cache):
    guard = cpu.caching(cache)
    with guard:
        assert in_a_thread(cpu.current) is None
        assert isinstance(in_a_thread(lambda: guard.__exit__(None, None, None)), RequestError)
        assert cpu.current() is cache


def test_a_guard_keeps_its_allocator_alive():
    cache = cpu.CachingAllocator()
    alive = weakref.ref(cache)
    with cpu.caching(cache):
        del cache
        cpu.free(cpu.allocate(100))
        assert alive().cached_bytes == 100
    assert alive() is None


# --- the default allocator -----------------------------------------------------------------------------------


def test_the_default_allocator_uses_the_installed_one(cache):
    with cpu.caching(cache):
        address = cpu.allocate(100)
        cpu.free(address)
        assert cache.cached_bytes == 100
        assert cpu.allocate(100) == address
    cache.free(address)


def test_memory_freed_outside_its_guard_leaves_the_map_for_the_system(cache, memory):
    with cpu.caching(cache):
        address = cpu.allocate(100)
    cpu.free(address)
    assert memory.freed() == [address]
    assert cpu.recorded_size(address) is None
    assert cache.cached_bytes == 0


def test_memory_from_before_the_guard_goes_to_the_system_inside_it():
    cache = cpu.CachingAllocator()
    address = cpu.allocate(100)
    assert cpu.recorded_size(address) is None
    with cpu.caching(cache):
        cpu.free(address)
    assert cache.stats()["system_frees"] == 1
    assert cache.cached_bytes == 0


def test_without_a_guard_nothing_is_cached():
    ctypes.memset(address := cpu.allocate(1000), 1, 1000)
    assert address % 64 == 0
    cpu.free(address)
    assert cpu.allocate(0) == 0


def test_cached_memory_is_not_given_to_the_system_a_second_time(cache, memory):
    address = cache.allocate(100)
    cache.free(address)
    with pytest.raises(AddressError, match="free already"):
        cpu.free(address)
    assert memory.freed() == []
    assert cache.allocate(100) == address


# --- checked mode --------------------------------------------------------------------------------------------


def test_checked_mode_sees_a_double_free(checked, memory):
    address = checked.allocate(100)
    checked.free(address)
    with pytest.raises(AddressError, match="free already") as caught:
        checked.free(address)
    assert caught.value.address == address
    assert checked.stats()["cached_blocks"] == 1
    assert checked.allocate(100) == address
    assert memory.freed() == []


def test_checked_mode_sees_a_double_free_of_what_another_allocator_cached(cache, checked):
    address = checked.allocate(100)
    cache.free(address)
    with pytest.raises(AddressError, match="free already"):
        checked.free(address)


@pytest.mark.parametrize("foreign", [8, 0x7FFF_0000_0000, (1 << 64) - 1])
def test_checked_mode_sees_foreign_memory(checked, memory, foreign):
    with pytest.raises(AddressError, match="never allocated here") as caught:
        checked.free(foreign)
    assert caught.value.address == foreign
    assert memory.calls == []


def test_checked_mode_sees_an_address_inside_a_block(checked):
    address = checked.allocate(100)
    with pytest.raises(AddressError):
        checked.free(address + 64)
    checked.free(address)


def test_checked_mode_sees_memory_that_returned(checked):
    address = checked.allocate(100)
    checked.free(address)
    checked.empty_cache()
    with pytest.raises(AddressError, match="returned to the system"):
        checked.free(address)


def test_checked_mode_sees_that_cached_memory_is_declared_free(checked):
    address = checked.allocate(100)
    checked.free(address)
    with pytest.raises(AddressError, match="free already"):
        cpu.record_free(address)
    assert cpu.recorded_size(address) == 100
    assert checked.allocate(100) == address
    cpu.record_free(address)
    assert cpu.recorded_size(address) is None


def test_checked_mode_knows_the_default_allocators_memory():
    checked = cpu.CachingAllocator(checked=True)
    address = cpu.allocate(100)
    with cpu.caching(checked):
        cpu.free(address)
        with pytest.raises(AddressError, match="returned to the system"):
            cpu.free(address)
    assert checked.stats()["system_frees"] == 1
    assert cpu.recorded_size(address) is None


# --- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocate", ["instance", "default"])
def test_sizes_that_no_request_can_have_are_refused(cache, memory, allocate):
    cache.free(cache.allocate(100))
    memory.calls.clear()
    request = cache.allocate if allocate == "instance" else cpu.allocate
    with pytest.raises(SizeError, match="-1 bytes"):
        request(-1)
    with pytest.raises(SizeError):
        request(-(1 << 70))
    for absurd in (1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 200):
        with pytest.raises(OutOfMemoryError, match="more than any device has"):
            request(absurd)
    for wrong in (b"100", 100.0, None):
        with pytest.raises(TypeError):
            request(wrong)
    assert memory.calls == []
    assert cache.cached_bytes == 100


@pytest.mark.parametrize("free", ["instance", "default", "record_free"])
def test_invalid_addresses_are_refused(cache, memory, free):
    call = {"instance": cache.free, "default": cpu.free, "record_free": cpu.record_free}[free]
    for wrong in (-1, 1 << 64):
        with pytest.raises(AddressError, match="invalid device pointer"):
            call(wrong)
    for wrong in ("1", 1.0, None):
        with pytest.raises(TypeError):
            call(wrong)
    assert memory.calls == []


def test_anything_but_a_system_or_allocator_is_refused():
    with pytest.raises(TypeError, match="must have the methods allocate and free"):
        cpu.CachingAllocator(system=object())
    with pytest.raises(TypeError):
        cpu.caching("cache")
    with pytest.raises(RequestError, match="a byte"):
        cpu.set_fill(on_allocate=256)


# --- fill patterns -------------------------------------------------------------------------------------------


def test_new_memory_is_filled_and_cached_memory_is_not(no_fill):
    cache = cpu.CachingAllocator()
    cpu.set_fill(on_allocate=0xAB)
    address = cache.allocate(1000)
    assert ctypes.string_at(address, 1000) == b"\xab" * 1000
    ctypes.memset(address, 1, 1000)
    cache.free(address)
    assert cache.allocate(1000) == address
    assert ctypes.string_at(address, 1000) == b"\x01" * 1000
    cache.free(address)


class ReadableMemory:
    """Its memory can still be read after it was freed."""

    def __init__(self):
        self.buffers = {}

    def allocate(self, size):
        buffer = ctypes.create_string_buffer(size)
        self.buffers[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def free(self, address):
        pass


def test_memory_that_returns_is_filled(no_fill):
    memory = ReadableMemory()
    cache = cpu.CachingAllocator(system=memory)
    cpu.set_fill(on_free=0xCD)
    address, other = cache.allocate(100), cache.allocate(100)
    cache.free(address)
    assert memory.buffers[address].raw == bytes(100)
    cache.empty_cache()
    assert memory.buffers[address].raw == b"\xcd" * 100
    cpu.free(other)
    assert memory.buffers[other].raw == b"\xcd" * 100


# --- C entry points ------------------------------------------------------------------------------------------


@pytest.mark.threads
def test_c_code_shares_the_cache_with_python(cache):
    table = table_of(cache.entry_points())
    assert (table.size, table.version) == (ctypes.sizeof(EntryPoints), 1)
    address = table.allocate(100)
    assert cpu.recorded_size(address) == 100
    assert table.free(address)
    assert cache.cached_bytes == 100
    assert cache.allocate(100) == address
    assert table.record_free(address)
    assert cpu.recorded_size(address) is None
    assert table.allocate(0) is None
    assert table.free(None)
    assert in_a_thread(table.last_error) == ""


@pytest.mark.threads
def test_c_code_gets_the_failure_of_its_thread(checked, memory):
    table = table_of(checked.entry_points())
    address = table.allocate(100)
    table.free(address)
    for call, words in [
        (lambda: table.free(address), f"{address:#x} is free already"),
        (lambda: table.free(0x1234000), "0x1234000 is not the start of memory in use"),
        (lambda: table.record_free(address), f"{address:#x} is free already"),
        (lambda: table.allocate(1 << 60), f"out of memory: tried to allocate {1 << 60} bytes"),
        (lambda: table.allocate((1 << 64) - 1), f"out of memory: tried to allocate {(1 << 64) - 1} bytes"),
    ]:
        assert not call()
        assert table.last_error() == words
        assert table.last_error(capacity=5) == words[:5]
        assert in_a_thread(table.last_error) == ""
    assert checked.cached_bytes == 100


def test_c_code_gets_null_after_a_second_failure(cache, memory):
    table = table_of(cache.entry_points())
    table.free(table.allocate(100))
    memory.failures = [None, MemoryError("full")]
    assert table.allocate(200) is None
    assert table.last_error() == "out of memory: tried to allocate 200 bytes"
    assert cache.cached_bytes == 0
    assert table.allocate(200) is not None


def test_the_default_table_uses_the_guard(cache):
    table = table_of(cpu.entry_points())
    plain = table.allocate(100)
    assert cpu.recorded_size(plain) is None
    assert table.free(plain)
    with cpu.caching(cache):
        address = table.allocate(100)
        assert table.free(address)
        assert cache.cached_bytes == 100
        with cpu.caching(None):
            assert not table.free(address)
            assert table.last_error() == f"{address:#x} is free already"
        assert cpu.allocate(100) == address


def test_a_table_outlives_every_reference_to_its_allocator():
    cache = cpu.CachingAllocator()
    alive = weakref.ref(cache)
    table = table_of(cache.entry_points())
    del cache
    gc.collect()
    table.free(table.allocate(100))
    assert alive().cached_bytes == 100
