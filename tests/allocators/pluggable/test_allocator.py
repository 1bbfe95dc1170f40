"""An allocator made of user functions: the arguments of their calls, and the records of their results."""

import copy
import ctypes
import gc
import pickle
import shutil
import subprocess
import weakref

import numpy as np
import pytest

import allotment
from allotment import AddressError, Allocator, DeviceError, OutOfMemoryError, PluggableAllocator, RequestError
from allotment.errors import PoolError, SizeError, StreamError, UnsupportedError
from helpers import plugged_memory
from helpers.engine import MIB, counters_of
from helpers.plugged_memory import Memory

HOOKS = (
    "init", "reset", "memory_fraction", "base_alloc", "record_stream", "begin_allocate_to_pool",
    "end_allocate_to_pool", "release_pool",
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return plugged_memory.build(tmp_path_factory.mktemp("plug"))


@pytest.fixture
def noted(library):
    """Return C functions whose last calls can be read."""
    return PluggableAllocator.from_library(library.path, "noted_alloc", "noted_free")


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def plug(memory):
    return PluggableAllocator(memory.alloc, memory.free)


def out(plug, device=None):
    """Return the (bytes, pointers) that are allocated."""
    stats = plug.stats(device)
    return stats["allocated_bytes.all.current"], stats["allocation.all.current"]


# --- functions in C ---


def test_c_functions_get_the_arguments_of_the_request(library, noted):
    address = noted.malloc(1000, 7, device=3)
    call = library.last("alloc")
    assert (call.size, call.device, call.stream) == (1000, 3, 7)
    noted.free(address)
    call = library.last("free")
    assert (call.pointer, call.size, call.device, call.stream) == (address, 1000, 3, 7)


def test_without_a_device_or_stream_both_are_0(library, noted):
    noted.free(noted.malloc(8))
    call = library.last("alloc")
    assert (call.device, call.stream) == (0, 0)


def test_a_function_is_an_address_or_a_ctypes_function(library):
    before = library.count("allocs"), library.count("frees")
    plug = PluggableAllocator(library.address("counted_alloc"), library["counted_free"])
    plug.free(plug.malloc(100))
    assert (library.count("allocs"), library.count("frees")) == (before[0] + 1, before[1] + 1)
    assert library.count("wrong_frees") == 0


def test_a_ctypes_callback_is_kept_alive():
    def alloc(size, device, stream):
        return 4096

    made = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(alloc)
    plug = PluggableAllocator(made, lambda *received: None)
    del made
    gc.collect()
    assert plug.malloc(10) == 4096


def test_kinds_of_functions_can_be_mixed(library):
    freed = []
    plug = PluggableAllocator(library["counted_alloc"], lambda *received: freed.append(received))
    address = plug.malloc(64, 5)
    plug.free(address)
    assert freed == [(address, 64, 0, 5)]


def test_memory_of_c_functions_can_be_written(noted):
    address = noted.malloc(256)
    view = np.frombuffer((ctypes.c_char * 256).from_address(address), np.uint8)
    view[:] = 5
    assert view.sum() == 5 * 256
    noted.free(address)


# --- wrong functions ---


@pytest.mark.parametrize("given", [0, -1, 1 << 64])
def test_an_address_of_no_function_is_refused(memory, given):
    with pytest.raises(RequestError, match=f"invalid address of the reset function: {given}"):
        PluggableAllocator(memory.alloc, memory.free, reset=given)


def test_something_that_is_no_function_is_refused(memory):
    with pytest.raises(TypeError, match=r"alloc must be a C function .* or a callable, not str"):
        PluggableAllocator("alloc", memory.free)


def test_both_functions_are_needed(memory):
    with pytest.raises(TypeError, match="both alloc and free"):
        PluggableAllocator(memory.alloc, None)


def test_functions_cannot_be_exchanged_later(plug, memory):
    with pytest.raises(RequestError, match="make another one"):
        plug.__init__(memory.alloc, memory.free)


def test_a_library_that_is_not_there_is_named():
    with pytest.raises(RequestError, match=r"'/no/such\.so' cannot be loaded"):
        PluggableAllocator.from_library("/no/such.so", "a", "b")


@pytest.mark.parametrize("names", [("absent", "noted_free", {}), ("noted_alloc", "noted_free", {"reset": "absent"})])
def test_a_function_that_a_library_lacks_is_named(library, names):
    alloc, free, hooks = names
    with pytest.raises(RequestError, match=r"plugged_memory\.so' does not have a function 'absent'"):
        PluggableAllocator.from_library(library.path, alloc, free, **hooks)


# --- counts of blocks in use ---


def test_size_0_is_passed_on(plug, memory):
    address = plug.malloc(0)
    assert address != 0
    assert memory.calls == [("alloc", 0, 0, 0)]
    assert out(plug) == (0, 1)
    plug.free(address)
    assert memory.calls[-1] == ("free", address, 0, 0, 0)


def test_the_first_record_wins_when_an_address_repeats(plug, memory):
    memory.script = [4096, 4096]
    assert plug.malloc(100, 1, device=1) == plug.malloc(200, 2, device=2) == 4096
    assert out(plug, 1) == (100, 1)
    assert out(plug, 2) == (0, 0)
    plug.free(4096)
    assert memory.calls[-1] == ("free", 4096, 100, 1, 1)
    with pytest.raises(AddressError):
        plug.free(4096)


def test_null_is_recorded_like_any_pointer_and_returned(library):
    plug = PluggableAllocator.from_library(library.path, "null_alloc", "noted_free")
    assert plug.malloc(100, 9) == 0
    assert plug.malloc(200, 8) == 0
    plug.free(0)
    call = library.last("free")
    assert (call.pointer, call.size, call.stream) == (0, 100, 9)
    with pytest.raises(AddressError):
        plug.free(0)


def test_null_is_no_memory(plug, memory):
    memory.script = [None, 0]
    assert plug.malloc(100) == plug.malloc(0) == 0
    assert out(plug) == (0, 0)
    assert plug.history.segments() == []
    assert plug.stats()["num_ooms"] == 1  # a request of 0 bytes cannot be refused


@pytest.mark.parametrize("address", [0, 1, 4096, (1 << 64) - 1])
def test_an_unknown_pointer_is_refused(plug, memory, address):
    with pytest.raises(AddressError, match="Trying to free a pointer not allocated here") as caught:
        plug.free(address)
    assert caught.value.address == address
    assert memory.calls == []


def test_a_pointer_cannot_be_freed_twice(noted, library):
    address = noted.malloc(10)
    noted.free(address)
    frees = library.count("frees")
    with pytest.raises(AddressError, match="not allocated here"):
        noted.free(address)
    assert library.count("frees") == frees


def test_any_pointer_can_be_recorded(plug, memory):
    memory.script = [(1 << 64) - 1]
    assert plug.malloc(10) == (1 << 64) - 1
    plug.free((1 << 64) - 1)
    assert out(plug) == (0, 0)


def test_the_free_function_is_called_without_the_lock():
    """The function requests memory from the allocator: if the lock were held, it would wait for ever."""
    plug = PluggableAllocator(lambda size, *_: 4096 + size, lambda *_: asked.append(plug.malloc(10)))
    asked = []
    plug.free(plug.malloc(20))
    assert asked == [4106]


def test_a_pointer_is_forgotten_before_its_free_function_runs():
    """So that the same address can be returned, and entered, meanwhile."""
    plug = PluggableAllocator(lambda *_: 4096, lambda p, size, *_: size == 100 and plug.malloc(200))
    plug.malloc(100)
    plug.free(4096)
    assert out(plug) == (200, 1)


def test_many_pointers_are_kept_apart(noted):
    addresses = [noted.malloc(size) for size in range(1, 3000)]
    assert out(noted) == (sum(range(1, 3000)), 2999)
    for address in addresses:
        noted.free(address)
    assert out(noted) == (0, 0)


@pytest.mark.parametrize("size", [-1, -(1 << 70)])
def test_a_negative_size_is_refused(plug, memory, size):
    with pytest.raises(SizeError):
        plug.malloc(size)
    assert memory.calls == []


def test_a_size_beyond_a_functions_argument_is_out_of_memory(plug, memory):
    with pytest.raises(OutOfMemoryError) as caught:
        plug.malloc(1 << 64)
    assert caught.value.facts.too_large
    assert memory.calls == []


def test_sizes_up_to_the_largest_are_passed_on(plug, memory):
    memory.script = [None]
    assert plug.malloc((1 << 64) - 1) == 0
    assert memory.calls == [("alloc", (1 << 64) - 1, 0, 0)]


def test_things_that_are_no_numbers_are_refused(plug, memory):
    with pytest.raises(SizeError):
        plug.malloc("5")
    for wrong in (b"5", 1.5, None):
        with pytest.raises(TypeError):
            plug.malloc(wrong)
        with pytest.raises(TypeError):
            plug.free(wrong)
        with pytest.raises(TypeError):
            plug.malloc(1, object())
    with pytest.raises(StreamError):
        plug.malloc(1, -1)
    for index in (-1, 1 << 16, 1 << 40):
        with pytest.raises(RequestError, match="invalid device index"):
            plug.malloc(1, device=index)
        with pytest.raises(RequestError, match="invalid device index"):
            plug.stats(index)
    assert memory.calls == []


@pytest.mark.parametrize("count", [-1, 1 << 31, 1 << 70])
def test_a_number_of_devices_that_no_machine_has_is_refused(memory, count):
    with pytest.raises(RequestError, match="invalid number of devices"):
        PluggableAllocator(memory.alloc, memory.free, device_count=count)


def test_one_that_was_not_made_has_no_memory_and_does_no_harm():
    plug = PluggableAllocator.__new__(PluggableAllocator)
    assert plug.device.name == "pluggable"
    assert "pluggable" in plug.inspection.summary()
    with pytest.raises(DeviceError):
        plug.malloc(1)
    with pytest.raises(UnsupportedError):
        plug.memory_info()


def test_an_observer_is_something_to_call(plug):
    with pytest.raises(TypeError, match="an observer must be callable, not int"):
        plug.limits.attach_out_of_memory_observer(5)


# --- exceptions of Python functions ---


def test_a_memory_error_is_out_of_memory(plug, memory):
    plug.malloc(70)
    memory.script = [MemoryError("full")]
    with pytest.raises(OutOfMemoryError) as caught:
        plug.malloc(100, 5, device=0)
    assert isinstance(caught.value.__cause__, MemoryError)
    facts = caught.value.facts
    assert (facts.requested, facts.stream, facts.allocated, facts.device) == (100, 5, 70, "pluggable")
    assert plug.stats()["num_ooms"] == 1
    assert out(plug) == (70, 1)


@pytest.mark.parametrize("answer", [ValueError("broken"), "text", -1, 1 << 64])
def test_anything_else_that_goes_wrong_is_a_device_error(plug, memory, answer):
    memory.script = [answer]
    with pytest.raises(DeviceError, match="the alloc function of a pluggable allocator failed") as caught:
        plug.malloc(100)
    assert isinstance(caught.value.__cause__, (ValueError, TypeError, OverflowError))
    assert caught.value.operation == "alloc"
    assert out(plug) == (0, 0)


def test_a_free_function_that_raises_leaves_the_books_in_order(plug, memory):
    address = plug.malloc(100)
    memory.script = [KeyError("gone")]
    with pytest.raises(DeviceError, match=r"the free function .* KeyError: 'gone'") as caught:
        plug.free(address)
    assert isinstance(caught.value.__cause__, KeyError)
    assert out(plug) == (0, 0)
    with pytest.raises(AddressError):
        plug.free(address)


def test_an_interrupt_stays_one(plug, memory):
    memory.script = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        plug.malloc(100)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_is_a_device_error(memory, hook):
    def fail(*arguments):
        raise ValueError("no")

    calls = {
        "init": lambda plug: plug.init(1),
        "reset": lambda plug: plug.empty_cache(),
        "memory_fraction": lambda plug: plug.limits.set_memory_fraction(0.5),
        "base_alloc": lambda plug: plug.inspection.base_allocation(1),
        "record_stream": lambda plug: plug.record_stream(1, 2),
        "begin_allocate_to_pool": lambda plug: plug.pools.begin_allocate_to_pool((0, 1)),
        "end_allocate_to_pool": lambda plug: plug.pools.end_allocate_to_pool((0, 1)),
        "release_pool": lambda plug: plug.pools.release((0, 1)),
    }
    with pytest.raises(DeviceError, match=f"the {hook} function .* ValueError: no"):
        calls[hook](PluggableAllocator(memory.alloc, memory.free, **{hook: fail}))


# --- observers ---


def test_observers_hear_of_null_and_of_memory_errors(plug, memory):
    heard = []
    plug.limits.attach_out_of_memory_observer(heard.append)
    memory.script = [0, MemoryError()]
    assert plug.malloc(100, 3) == 0
    with pytest.raises(OutOfMemoryError):
        plug.malloc(200, 4)
    assert [(facts.requested, facts.stream) for facts in heard] == [(100, 3), (200, 4)]


def test_observers_do_not_hear_of_nothing(plug, memory):
    heard = []
    plug.limits.attach_out_of_memory_observer(heard.append)
    memory.script = [0]
    assert plug.malloc(0) == 0
    assert heard == []


def test_what_an_observer_raises_is_reported_and_does_not_replace_the_error(plug, memory, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(type(report.exc_value)))

    def observer(facts):
        raise LookupError

    plug.limits.attach_out_of_memory_observer(observer)
    memory.script = [MemoryError()]
    with pytest.raises(OutOfMemoryError):
        plug.malloc(1)
    assert reported == [LookupError]


def test_an_observer_learns_what_the_device_has(memory):
    heard = []
    plug = PluggableAllocator(lambda *_: None, memory.free, device="sim:1GiB")
    plug.limits.attach_out_of_memory_observer(heard.append)
    plug.malloc(5)
    assert (heard[0].device, heard[0].device_free, heard[0].device_total) == ("sim:1GiB", 1 << 30, 1 << 30)


# --- hooks ---


def test_hooks_are_called_in_c(library):
    names = ["note_init", "note_reset", "note_fraction", "note_base", "note_record", "note_begin", "note_end",
             "note_release"]  # fmt: skip
    plug = PluggableAllocator.from_library(
        library.path, "noted_alloc", "noted_free", device_count=4, **dict(zip(HOOKS, names, strict=True))
    )
    assert library.last("init").device == 4
    plug.init(8)
    assert library.last("init").device == 8

    resets = library.count("resets")
    plug.empty_cache((0, 5))
    assert library.count("resets") == resets + 1

    plug.limits.set_memory_fraction(0.25, 2)
    assert (library.last("fraction").fraction, library.last("fraction").device) == (0.25, 2)

    address = plug.malloc(1234)
    assert plug.inspection.base_allocation(address) == (address & ~4095, 4096)
    assert (library.last("base").pointer, library.last("base").size) == (address, 1234)

    plug.record_stream(address, 77)
    assert (library.last("record").pointer, library.last("record").stream) == (address, 77)

    plug.pools.begin_allocate_to_pool((3, 4), accepts=bool, device=1)
    plug.pools.end_allocate_to_pool((5, 6), device=2)
    plug.pools.release((7, 8), device=3)
    received = [library.last(kind) for kind in ("begin", "end", "release")]
    assert [(call.device, call.first, call.second) for call in received] == [(1, 3, 4), (2, 5, 6), (3, 7, 8)]
    assert received[0].filter == 0


WRITTEN_FOR_PYTORCH = r"""
#include <cstdlib>
#include <functional>
#include <utility>

using PoolId = std::pair<unsigned long long, unsigned long long>;

extern "C" {
unsigned long long received[3][3];

static void note(int which, int device, PoolId pool) {
    received[which][0] = device; received[which][1] = pool.first; received[which][2] = pool.second;
}

void* my_alloc(size_t size, int device, void* stream) { return malloc(size); }
void my_free(void* pointer, size_t size, int device, void* stream) { free(pointer); }
void my_begin(int device, PoolId pool, std::function<bool(void*)> filter) { note(0, device, pool); }
void my_end(int device, PoolId pool) { note(1, device, pool); }
void my_release(int device, PoolId pool) { note(2, device, pool); }
}
"""


def test_cpp_functions_with_the_signatures_of_pytorch_can_be_given_as_they_are(tmp_path):
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler on this machine")
    (tmp_path / "my_memory.cc").write_text(WRITTEN_FOR_PYTORCH)
    library = tmp_path / "my_memory.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, tmp_path / "my_memory.cc"], check=True)
    hooks = {"begin_allocate_to_pool": "my_begin", "end_allocate_to_pool": "my_end", "release_pool": "my_release"}
    plug = PluggableAllocator.from_library(library, "my_alloc", "my_free", **hooks)
    plug.free(plug.malloc(1000))
    plug.pools.begin_allocate_to_pool((3, 4), accepts=bool, device=1)
    plug.pools.end_allocate_to_pool((5, 6), device=2)
    plug.pools.release((7, 8), device=3)
    received = (ctypes.c_uint64 * 9).in_dll(ctypes.CDLL(str(library)), "received")
    assert list(received) == [1, 3, 4, 2, 5, 6, 3, 7, 8]


def test_hooks_are_called_in_python(memory):
    calls = []

    def noting(name):
        return lambda *arguments: calls.append((name, *arguments))

    plug = PluggableAllocator(memory.alloc, memory.free, **{name: noting(name) for name in HOOKS if "base" not in name})
    plug.empty_cache((0, 5))
    plug.limits.memory_fraction = 0.5
    plug.record_stream(10, 20)
    plug.pools.begin_allocate_to_pool((0, 1), accepts=bool)
    plug.pools.end_allocate_to_pool((0, 1))
    plug.pools.release((0, 1), device=1)
    assert calls == [
        ("init", 0),
        ("reset",),
        ("memory_fraction", 0.5, 0),
        ("record_stream", 10, 20),
        ("begin_allocate_to_pool", 0, (0, 1), bool),
        ("end_allocate_to_pool", 0, (0, 1)),
        ("release_pool", 1, (0, 1)),
    ]


def test_without_hooks_nothing_happens(plug, memory):
    address = plug.malloc(100)
    del memory.calls[:]
    plug.init(1)
    plug.empty_cache()
    plug.empty_cache("ignored")
    plug.limits.set_memory_fraction(0.5)
    plug.record_stream(address, 5)
    plug.pools.begin_allocate_to_pool((0, 1))
    plug.pools.end_allocate_to_pool((0, 1))
    plug.pools.release((0, 1))
    assert plug.inspection.base_allocation(address) == (address, 100)
    assert plug.inspection.base_allocation(12345) == (12345, 0)
    assert memory.calls == []
    assert out(plug) == (100, 1)


def test_a_base_function_may_leave_the_size_alone(library, memory):
    plug = PluggableAllocator(library["noted_alloc"], library["noted_free"], base_alloc=library["note_base_alone"])
    address = plug.malloc(50)
    assert plug.inspection.base_allocation(address) == (address - 16, 50)
    plug.free(address)

    plug = PluggableAllocator(memory.alloc, memory.free, base_alloc=lambda pointer: pointer - 1)
    address = plug.malloc(50)
    assert plug.inspection.base_allocation(address) == (address - 1, 50)


def test_a_base_function_in_python_may_return_the_size(memory):
    plug = PluggableAllocator(memory.alloc, memory.free, base_alloc=lambda pointer: (pointer - 1, 99))
    assert plug.inspection.base_allocation(10) == (9, 99)


@pytest.mark.parametrize("answer", [None, (1, 2, 3), ("a", 1), -5])
def test_a_base_function_without_a_valid_address_is_an_error(memory, answer):
    plug = PluggableAllocator(memory.alloc, memory.free, base_alloc=lambda pointer: answer)
    with pytest.raises(DeviceError, match="the base_alloc function"):
        plug.inspection.base_allocation(10)


def test_a_memory_fraction_can_be_read_once_somebody_heard_it(memory):
    plug = PluggableAllocator(memory.alloc, memory.free, memory_fraction=lambda *_: None)
    with pytest.raises(UnsupportedError, match="get_memory_fraction"):
        plug.limits.get_memory_fraction()
    plug.limits.set_memory_fraction(0.5)
    plug.limits.set_memory_fraction(0.25, 3)
    assert (plug.limits.memory_fraction, plug.limits.get_memory_fraction(3)) == (0.5, 0.25)


def test_a_memory_fraction_that_was_not_passed_on_is_not_in_force(plug):
    plug.limits.memory_fraction = 0.5
    with pytest.raises(UnsupportedError, match="give the allocator a memory_fraction function"):
        _ = plug.limits.memory_fraction


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_memory_fraction_lies_between_0_and_1(plug, fraction):
    with pytest.raises(RequestError, match="invalid memory fraction"):
        plug.limits.set_memory_fraction(fraction)


def test_pools_are_counted_as_begun_and_released(plug):
    assert plug.pools.use_count((0, 1)) == 0
    plug.pools.begin_allocate_to_pool((0, 1))
    plug.pools.begin_allocate_to_pool((0, 1))
    plug.pools.end_allocate_to_pool((0, 1))
    plug.pools.begin_allocate_to_pool((0, 1), device=1)
    assert plug.pools.use_count((0, 1)) == 2
    plug.pools.release((0, 1))
    assert plug.pools.use_count((0, 1)) == 1
    plug.pools.release((0, 1))
    plug.pools.release((0, 1))
    assert plug.pools.use_count((0, 1)) == 0
    assert plug.pools.use_count((0, 1), device=1) == 1


def test_an_id_of_no_pool_is_refused(plug):
    for call in (
        plug.pools.begin_allocate_to_pool,
        plug.pools.end_allocate_to_pool,
        plug.pools.release,
        plug.pools.use_count,
    ):
        with pytest.raises(PoolError, match="invalid pool id"):
            call("pool")


# --- what it says of itself ---


def test_it_says_what_it_is(plug):
    assert repr(plug).startswith("<PluggableAllocator without a device: ")


def test_switching_caching_has_no_effect(plug, memory):
    plug.pools.caching = False
    assert plug.pools.caching
    plug.malloc(10)
    assert memory.calls == [("alloc", 10, 0, 0)]


def test_a_copy_has_the_functions_and_its_own_ledger(memory):
    calls = []
    hooks = {"init": calls.append, "record_stream": lambda *received: calls.append(received)}
    plug = PluggableAllocator(memory.alloc, memory.free, **hooks)
    address = plug.malloc(100)
    for other in (copy.copy(plug), copy.deepcopy(plug)):
        assert out(other) == (0, 0)
        with pytest.raises(AddressError):
            other.free(address)
        other.record_stream(1, 2)
        other.free(other.malloc(5))
    assert calls == [0, (1, 2), (1, 2)]
    assert out(plug) == (100, 1)


def test_a_copy_of_c_functions_calls_them(library, noted):
    other = copy.copy(noted)
    address = other.malloc(10)
    assert library.last("alloc").size == 10
    other.free(address)
    assert library.last("free").pointer == address


# --- figures ---


def test_counters_have_the_names_of_every_allocator(plug):
    assert list(plug.stats()) == list(Allocator("sim:1GiB", settings="compat:2.11").stats())
    assert plug.stats()["max_split_size"] == -1
    assert set(plug.stats().values()) == {0, -1}


def test_counters_say_what_segments_show(plug):
    addresses = [plug.malloc(size) for size in (0, 1, MIB, MIB + 1, 5 * MIB)]
    plug.free(addresses[3])
    expected = counters_of(plug.history.segments())
    stats = plug.stats()
    assert {key: stats[key] for key in expected} == expected
    assert (stats["segment.small_pool.current"], stats["segment.large_pool.current"]) == (3, 1)
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (5, 1)


def test_each_device_has_counters_of_its_own(plug):
    plug.malloc(100, device=0)
    plug.malloc(200, device=7)
    assert (out(plug), out(plug, 7), out(plug, 3)) == ((100, 1), (200, 1), (0, 0))


def test_peaks_and_totals_can_be_reset(plug):
    def bytes_now():
        return tuple(plug.inspection.nested_stats()["allocated_bytes"]["all"].values())

    plug.free(plug.malloc(100))
    plug.malloc(30)
    assert bytes_now() == (30, 100, 130, 100)
    plug.reset_peak_stats()
    assert bytes_now() == (30, 30, 130, 100)
    plug.inspection.reset_accumulated_stats()
    assert bytes_now() == (30, 30, 0, 0)
    plug.reset_peak_stats(99)
    plug.inspection.reset_accumulated_stats(99)


def test_a_summary_shows_the_counters(plug):
    plug.malloc(5000)
    assert "Allotment memory summary, device pluggable" in plug.inspection.summary()
    assert "5000 B" in plug.inspection.summary(abbreviated=True)


def test_a_snapshot_shows_pointers_as_segments_of_one_block(plug, memory):
    memory.script = [1 << 30, 1 << 20, 5]
    plug.malloc(3 * MIB, 9)
    plug.malloc(100)
    plug.malloc(8, device=2)
    snapshot = plug.snapshot()
    assert [(s["device"], s["address"]) for s in snapshot["segments"]] == [(0, 1 << 20), (0, 1 << 30), (2, 5)]
    large = snapshot["segments"][1]
    native = Allocator("sim:1GiB")
    native.malloc(100)
    assert large.keys() == native.history.segments()[0].keys()
    assert snapshot.keys() == native.snapshot().keys()
    assert (large["total_size"], large["stream"], large["segment_type"]) == (3 * MIB, 9, "large")
    assert large["segment_pool_id"] == (0, 0) and not large["is_expandable"]
    assert [(b["address"], b["size"], b["state"]) for b in large["blocks"]] == [(1 << 30, 3 * MIB, "active_allocated")]
    assert snapshot["device_traces"] == [[], [], []]


def test_a_private_pool_has_no_segments(plug):
    plug.malloc(1)
    assert plug.history.segments((0, 3)) == []


def test_a_snapshot_can_be_written(plug, tmp_path):
    plug.malloc(100)
    plug.history.dump_snapshot(tmp_path / "snapshot.pickle")
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        assert pickle.load(file) == plug.snapshot()


def test_memory_info_is_the_devices(memory):
    plug = PluggableAllocator(memory.alloc, memory.free, device="sim:1GiB")
    assert plug.memory_info() == (1 << 30, 1 << 30)
    assert plug.inspection.cache_info() == 1 << 30
    assert plug.inspection.cache_info(5) == 5


def test_without_a_device_there_is_no_memory_info(plug):
    for call in (plug.memory_info, plug.inspection.cache_info):
        with pytest.raises(UnsupportedError, match=r"getMemoryInfo is not implemented for this allocator yet\."):
            call()
    assert plug.inspection.cache_info(5) == 5


def test_how_much_there_is_and_how_it_is_divided_its_functions_decide(plug):
    assert plug.limit is None
    with pytest.raises(UnsupportedError, match="its functions decide"):
        plug.limit = "1GiB"
    with pytest.raises(UnsupportedError, match="its functions decide"):
        plug.settings = "expandable_segments:True"
    assert plug.settings == allotment.Settings()


@pytest.mark.parametrize("operation", ["copy", "enable_peer_access"])
def test_what_needs_a_device_says_so(plug, operation):
    call = {"copy": lambda: plug.copy(1, 2, 3), "enable_peer_access": lambda: plug.sharing.enable_peer_access(1)}
    with pytest.raises(UnsupportedError, match=f"does not support {operation}; it was made without a device") as caught:
        call[operation]()
    assert caught.value.operation == operation


# --- with a device ---


@pytest.fixture
def on_host(library):
    return PluggableAllocator.from_library(library.path, "counted_alloc", "counted_free", device="host")


@pytest.mark.threads
def test_a_buffer_is_host_memory_and_frees_itself(on_host):
    buffer = on_host.empty(1000)
    view = np.asarray(buffer)
    view[:] = 3
    assert view.sum() == 3000
    assert out(on_host) == (1000, 1)
    del buffer, view
    gc.collect()
    assert out(on_host) == (0, 0)


@pytest.mark.threads
def test_copies_are_made_by_the_device(on_host):
    source, destination = on_host.empty(100), on_host.empty(100)
    np.asarray(source)[:] = 7
    on_host.copy(destination, source, 100)
    allotment.Stream.default(on_host.device).synchronize()
    assert np.asarray(destination).tolist() == [7] * 100


@pytest.mark.threads
def test_streams_of_another_device_are_refused(on_host):
    with pytest.raises(StreamError):
        on_host.malloc(10, allotment.Stream(Allocator("host")))


@pytest.mark.threads
def test_streams_of_its_device_go_to_the_functions_by_their_handle(library, memory):
    allocator = Allocator("host")
    plug = PluggableAllocator(memory.alloc, memory.free, device=allocator.device)
    stream = allotment.Stream(allocator)
    plug.malloc(10, stream)
    assert memory.calls == [("alloc", 10, 0, stream.handle)]


def test_peers_are_the_devices(memory):
    plug = PluggableAllocator(memory.alloc, memory.free, device="sim:1GiB")
    other = allotment.SimulatedDevice("1GiB", 1)
    plug.sharing.enable_peer_access(other.index)
    plug.sharing.enable_peer_access(other.index)
    for wrong, error in ((-1, RequestError), (1 << 40, RequestError), (None, TypeError), ("cuda:1", TypeError)):
        with pytest.raises(error):
            plug.sharing.enable_peer_access(wrong)


def test_functions_get_the_index_of_the_device(memory):
    plug = PluggableAllocator(memory.alloc, memory.free, device="sim:1GiB#3")
    plug.malloc(10)
    assert memory.calls == [("alloc", 10, 3, 0)]
    assert out(plug) == (10, 1)
    assert repr(plug).startswith("<PluggableAllocator on sim:1GiB#3: 10 bytes live")


def test_a_buffer_of_no_memory_is_out_of_memory(plug, memory):
    memory.script = [0]
    with pytest.raises(OutOfMemoryError):
        plug.empty(10)


def test_figures_that_the_device_does_not_report_are_omitted():
    plug = PluggableAllocator(lambda *request: 0, print)
    with pytest.raises(OutOfMemoryError, match=r"was needed\. Allocator: 0 bytes reserved"):
        plug.empty(10)


def test_a_buffer_of_nothing_is_fine(plug, memory):
    memory.script = [0]
    assert len(plug.empty(0)) == 0
    buffer = plug.empty(0)
    assert buffer.address != 0
    del buffer
    assert memory.calls[-1][0] == "free"


def test_a_buffer_without_a_device_cannot_be_seen_but_frees_itself(plug):
    buffer = plug.empty(10)
    assert "on pluggable" in repr(buffer)
    with pytest.raises(BufferError):
        memoryview(buffer)
    del buffer
    gc.collect()
    assert out(plug) == (0, 0)


def test_an_allocator_in_a_cycle_is_collected():
    def make():
        plug = PluggableAllocator(lambda *_: id(plug), lambda *_: None)
        return weakref.ref(plug)

    gone = make()
    gc.collect()
    assert gone() is None
