"""What all kinds of allocators have in common: the same operations or a refusal, help, and a repr that always works."""

import inspect

import pytest

import allotment
from allotment import (
    Allocator,
    AsyncAllocator,
    OutOfMemoryError,
    PluggableAllocator,
    RequestError,
    SettingsError,
    UnsupportedError,
    make_allocator,
)
from allotment._allocators.unsupported import Unsupported

MIB = 1 << 20
KINDS = [Allocator, AsyncAllocator, PluggableAllocator]
HELD = [*KINDS, allotment.Buffer, allotment.Tenant, allotment.Pool, allotment.PoolState, allotment.Graph]


def make_plug():
    return PluggableAllocator(lambda size, device, stream: 4096, lambda *block: None, device="sim:1GiB")


MAKERS = {
    "caching": lambda: Allocator("sim:1GiB"),
    "stream-ordered": lambda: make_allocator("sim:1GiB", settings="backend:cudaMallocAsync"),
    "pluggable": make_plug,
}


@pytest.fixture(params=MAKERS)
def alloc(request):
    return MAKERS[request.param]()


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_allocator_can_do_every_kind_does_or_refuses(kind):
    assert public(Allocator) <= public(kind)


def test_a_caching_allocator_supports_everything():
    assert Allocator("sim:1GiB").unsupported == {}


def test_an_operation_is_there_exactly_if_it_is_supported(alloc):
    missing = {name for name in public(type(alloc)) if not hasattr(alloc, name)}
    assert missing - {"memory_fraction"} == set(alloc.unsupported)


def test_every_refusal_advises(alloc):
    for operation, instead in alloc.unsupported.items():
        with pytest.raises(UnsupportedError) as caught:
            getattr(alloc, operation)
        assert caught.value.operation == operation
        assert instead in str(caught.value)


@pytest.mark.parametrize("cls", HELD)
def test_every_public_name_of_a_class_has_a_docstring(cls):
    assert inspect.getdoc(cls)
    assert [name for name in public(cls) if not (getattr(cls, name).__doc__ or "").strip()] == []


@pytest.mark.parametrize("cls", HELD)
def test_every_class_and_method_has_a_signature(cls):
    assert inspect.signature(cls)
    for name in public(cls):
        member = inspect.getattr_static(cls, name)
        if callable(member):
            assert inspect.signature(member), name


@pytest.mark.parametrize("kind", KINDS)
def test_help_shows_what_is_refused(kind):
    import pydoc

    shown = pydoc.plain(pydoc.render_doc(kind))
    rows = [name for name in public(kind) if isinstance(inspect.getattr_static(kind, name), Unsupported)]
    assert all(f"{name} = <not supported: " in shown for name in rows)


# --- repr ---


def test_a_repr_tells_device_live_and_reserved_bytes_and_limit():
    alloc = Allocator("sim:1GiB", limit="512MiB")
    address = alloc.malloc(3 * MIB)
    name = alloc.device.name
    assert repr(alloc) == f"<Allocator on {name}: 3.00 MiB live, 20.00 MiB reserved, limit 512.00 MiB>"
    alloc.free(address)
    assert repr(alloc) == f"<Allocator on {name}: 0 bytes live, 20.00 MiB reserved, limit 512.00 MiB>"


def test_a_repr_of_a_pluggable_allocator_has_its_books():
    plug = make_plug()
    plug.malloc(700)
    assert repr(plug) == f"<PluggableAllocator on {plug.device.name}: 700 bytes live, 700 bytes reserved, no limit>"
    assert repr(PluggableAllocator(print, print)).startswith("<PluggableAllocator without a device: 0 bytes live")


def test_a_repr_of_a_buffer_tells_size_address_and_stream(alloc):
    buffer = alloc.empty(700, 7)
    assert repr(buffer) == f"<Buffer of 700 bytes at {buffer.address:#x} on {alloc.device.name}, stream 0x7>"


@pytest.mark.parametrize("kind", KINDS)
def test_a_repr_of_what_was_never_made_does_not_fail(kind):
    try:
        made = kind.__new__(kind, "sim:1GiB")
    except TypeError:
        made = kind.__new__(kind)
    assert kind.__name__ in repr(made)


def test_a_repr_works_inside_a_callback():
    alloc = Allocator("sim:1GiB")
    seen = []
    alloc.attach_trace_tracker(lambda *entry: seen.append(repr(alloc)))
    alloc.add_free_memory_callback(lambda: seen.append(repr(alloc)))
    alloc.record_history()
    alloc.free(alloc.malloc(700))
    assert len(seen) >= 3 and all(text.startswith("<Allocator on ") for text in seen)


# --- what is checked in one place ---


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_memory_fraction_out_of_range_is_refused(alloc, fraction):
    with pytest.raises(RequestError, match="invalid memory fraction"):
        alloc.memory_fraction = fraction


@pytest.mark.parametrize("kind", ["caching", "stream-ordered"])
def test_a_limit_is_a_size_or_none(kind):
    alloc = MAKERS[kind]()
    alloc.limit = "64MiB"
    assert (alloc.limit, alloc.memory_fraction) == (64 * MIB, 1 / 16)
    alloc.memory_fraction = 0.5
    assert alloc.limit == 512 * MIB
    with pytest.raises(SettingsError):
        alloc.limit = "a lot"
    assert alloc.limit == 512 * MIB
    alloc.limit = None
    assert (alloc.limit, alloc.memory_fraction) == (None, 1.0)


@pytest.mark.parametrize("size", [1 << 64, 1 << 200])
def test_a_size_that_no_device_has_is_out_of_memory(alloc, size):
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(size)
    assert caught.value.facts.too_large and caught.value.facts.requested == size


def test_only_public_names_are_in_the_package():
    assert sorted(dir(allotment)) == sorted(allotment.__all__)
