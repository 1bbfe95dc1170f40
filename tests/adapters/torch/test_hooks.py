"""The functions that PyTorch calls, called as PyTorch calls them: from C++, with its types and its exceptions."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import allotment
from allotment._devices.simulated.device import SimulatedDevice
from helpers.bare_packages import import_bare

SOURCES = Path(__file__).parents[2] / "helpers" / "torch_callers"
FINE, OUT_OF_MEMORY, FAILED = range(3)
MIB = 1 << 20
Address, Size = ctypes.c_void_p, ctypes.c_size_t


@pytest.fixture(scope="session")
def callers(tmp_path_factory):
    """Compile the C++ side, with those parts of PyTorch's libraries that its exceptions come from."""
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler on this machine")
    folder = tmp_path_factory.mktemp("callers")

    def build(name, *options):
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-L{folder}", f"-Wl,-rpath,{folder}", f"-Wl,-soname,{name}"]
        subprocess.run([compiler, *flags, "-o", folder / name, *options], check=True)
        return folder / name

    build("libc10.so", SOURCES / "c10.cpp")
    build("libc10_cuda.so", SOURCES / "c10_cuda.cpp", "-lc10")
    library = build("libcallers.so", SOURCES / "callers.cpp", "-Wl,--no-as-needed", "-lc10_cuda", "-lc10")
    return ctypes.CDLL(str(library))


@pytest.fixture
def hooks():
    try:
        return import_bare("allotment.torch._hooks")
    except ImportError as error:
        pytest.skip(f"built without a C++ compiler: {error}")


@pytest.fixture
def torch_side(hooks, callers, fresh_device):
    """Return the functions by name, as PyTorch calls them on one device; each returns (outcome, text, more)."""
    device, allocator = fresh_device(hooks)
    found = hooks.addresses()

    def call(name, function, *arguments, more=None):
        text = ctypes.create_string_buffer(1024)
        outcome = getattr(callers, name)(ctypes.c_void_p(found[function]), *arguments, text)
        return outcome, text.value.decode(), None if more is None else more.value

    def allocate(size, stream=0, on=device):
        address = Address()
        return call("call_allocate", "allocate", Size(size), on, Address(stream), ctypes.byref(address), more=address)

    def free(address, size=0, stream=0):
        function = ctypes.CFUNCTYPE(None, Address, Size, ctypes.c_int, Address)(found["free"])
        function(address, size, device, stream)

    def base(address):
        size, start = Size(), Address()
        outcome = call("call_base", "set_base_alloc_fn", Address(address), ctypes.byref(size), ctypes.byref(start))
        return (*outcome[:2], (start.value, size.value))

    def begin(pool, accepted, asked):
        return call(
            "call_begin", "set_begin_allocate_to_pool", device, *map(ctypes.c_ulonglong, pool), Address(accepted),
            ctypes.byref(asked),
        )  # fmt: skip

    def with_pool(function):
        return lambda pool: call("call_with_pool", function, device, *map(ctypes.c_ulonglong, pool))

    yield SimpleNamespace(
        allocator=allocator,
        allocate=allocate,
        free=free,
        base=base,
        record_stream=lambda address, stream: call(
            "call_record_stream", "set_record_stream_fn", Address(address), Address(stream)
        ),
        set_fraction=lambda part: call("call_fraction", "set_memory_fraction_fn", ctypes.c_double(part), device),
        reset=lambda: call("call_reset", "set_reset_fn"),
        begin=begin,
        end=with_pool("set_end_allocate_to_pool_fn"),
        release=with_pool("set_release_pool"),
    )
    # PyTorch does not say which device an address belongs to, and simulated devices have equal addresses.
    for block in [block for segment in allocator.history.segments() for block in segment["blocks"]]:
        if block["state"] == "active_allocated":
            allocator.free(block["address"])


@pytest.fixture(scope="session")
def fresh_device():
    """A process registers each device once: each test takes the next number."""
    numbers = iter(range(64))

    def fresh(hooks):
        number = next(numbers)
        allocator = allotment.Allocator(SimulatedDevice(64 * MIB, number))
        hooks.bind_with(lambda index: allocator.tenant("torch") if index == number else None)
        assert hooks.allocator_of(number) is allocator
        return number, allocator

    return fresh


def test_memory_is_the_allocators_and_pytorchs(torch_side):
    outcome, _, address = torch_side.allocate(1000)
    assert outcome == FINE
    assert torch_side.allocator.tenants() == {"torch": {"blocks": 1, "allocated_bytes": 1024, "requested_bytes": 1000}}
    torch_side.free(address, 1000)
    assert torch_side.allocator.tenants() == {}


def test_no_bytes_are_the_null_pointer(torch_side):
    assert torch_side.allocate(0) == (FINE, "", None)


def test_out_of_memory_is_pytorchs_own_exception_in_its_words(torch_side):
    outcome, text, address = torch_side.allocate(100 * MIB)
    assert (outcome, address) == (OUT_OF_MEMORY, None)
    assert text.startswith("CUDA out of memory. Tried to allocate 100.00 MiB. GPU ")
    assert torch_side.allocate(MIB)[0] == FINE


def test_an_absurd_size_is_out_of_memory_too(torch_side):
    outcome, text, _ = torch_side.allocate(1 << 60)
    assert (outcome, text) == (OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate more than 1EB memory.")


def test_a_device_that_cannot_be_opened_is_an_error(torch_side):
    outcome, text, _ = torch_side.allocate(1000, on=64)
    assert outcome == FAILED
    assert text.startswith("allotment cannot serve CUDA device 64")


def test_a_recorded_stream_holds_the_block_back(torch_side):
    _, _, address = torch_side.allocate(30 * MIB)
    assert torch_side.record_stream(address, 7)[0] == FINE
    torch_side.allocator.device.launch(7)
    torch_side.free(address)
    assert [(stream, block) for stream, _, block in torch_side.allocator.inspection.pending_events()] == [(7, address)]


def test_a_stream_recorded_for_unknown_memory_is_an_error(torch_side):
    outcome, text, _ = torch_side.record_stream(0x1234, 7)
    assert outcome == FAILED
    assert "invalid device pointer" in text


def test_the_base_of_a_block_is_its_segments(torch_side):
    torch_side.allocate(1000)
    _, _, second = torch_side.allocate(1000)
    outcome, _, (base, size) = torch_side.base(second)
    assert (outcome, base, size) == (FINE, second - 1024, 2 * MIB)
    assert torch_side.base(0x1234)[0] == FAILED


def test_a_reset_empties_the_cache(torch_side):
    torch_side.free(torch_side.allocate(1000)[2])
    assert torch_side.reset()[0] == FINE
    assert torch_side.allocator.stats()["reserved_bytes.all.current"] == 0


def test_the_fraction_is_the_allocators(torch_side):
    assert torch_side.set_fraction(0.25)[0] == FINE
    assert torch_side.allocator.limits.memory_fraction == 0.25
    assert torch_side.allocate(20 * MIB)[0] == OUT_OF_MEMORY
    assert torch_side.set_fraction(1.5)[0] == FAILED


def test_a_pool_serves_the_streams_that_the_function_object_accepts(torch_side):
    asked = ctypes.c_int()
    assert torch_side.begin((0, 1), 7, asked)[0] == FINE
    _, _, inside = torch_side.allocate(1000, stream=7)
    torch_side.allocate(1000, stream=8)
    assert asked.value == 2
    assert torch_side.allocator.pools.check_live_allocations((0, 1), {inside})
    assert torch_side.end((0, 1))[0] == FINE
    torch_side.allocate(1000, stream=7)
    assert asked.value == 2
    assert torch_side.release((0, 1))[0] == FINE
    torch_side.free(inside)
    assert torch_side.reset()[0] == FINE
    with pytest.raises(allotment.PoolError):
        torch_side.allocator.pools.use_count((0, 1))


def test_a_pool_used_wrongly_is_an_error(torch_side):
    asked = ctypes.c_int()
    assert torch_side.begin((0, 1), 7, asked)[0] == FINE
    assert torch_side.begin((0, 1), 7, asked)[0] == FAILED
    assert torch_side.end((0, 1))[0] == FINE
    assert torch_side.end((0, 1))[0] == FAILED
    assert torch_side.release((0, 1))[0] == FINE
    assert torch_side.release((0, 1))[0] == FAILED
