"""What all kinds of allocators have in common: the same names for the same operations, help, and a repr that works."""

import gc
import inspect
import pickle
import weakref

import pytest

import allotment
from allotment import (
    Allocator,
    AsyncAllocator,
    OutOfMemoryError,
    PluggableAllocator,
    RequestError,
    SettingsError,
    make_allocator,
)

MIB = 1 << 20
KINDS = [Allocator, AsyncAllocator, PluggableAllocator]


def make_plug():
    return PluggableAllocator(lambda size, device, stream: 4096, lambda *block: None, device="sim:1GiB")


MAKERS = {
    "caching": lambda: Allocator("sim:1GiB"),
    "stream-ordered": lambda: make_allocator("sim:1GiB", settings="backend:cudaMallocAsync"),
    "pluggable": make_plug,
}


PARTS = {"history", "inspection", "limits", "pools", "sharing", "sleep"}
PARTS_OF = {
    Allocator: PARTS,
    AsyncAllocator: PARTS - {"history", "sleep"},
    PluggableAllocator: PARTS - {"sleep"},
    allotment.PinnedAllocator: {"inspection"},
}
PART_KINDS = sorted(
    {type(getattr(make(), name)) for kind, make in zip(KINDS, MAKERS.values(), strict=True) for name in PARTS_OF[kind]},
    key=str,
)
HELD = [
    *(*KINDS, *PART_KINDS, allotment.Buffer, allotment.Tenant, allotment.Pool, allotment.PoolState, allotment.Graph)
]


@pytest.fixture(params=MAKERS)
def alloc(request):
    return MAKERS[request.param]()


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def test_an_allocator_has_at_most_forty_public_names():
    assert len(public(Allocator)) <= 40


@pytest.mark.parametrize("kind", PARTS_OF, ids=lambda kind: kind.__name__)
def test_a_kind_has_exactly_the_parts_of_what_it_can_do(kind):
    assert PARTS & public(kind) == PARTS_OF[kind]


def test_a_part_is_made_anew_and_keeps_its_allocator(alloc):
    for name in PARTS & public(type(alloc)):
        part = getattr(alloc, name)
        assert part.allocator is alloc and part is not getattr(alloc, name)
        assert repr(part).startswith(f"<{type(part).__name__} of <{type(alloc).__name__} on ")
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(part)


def test_a_part_is_one_of_an_allocator(alloc):
    for name in PARTS & public(type(alloc)):
        kind = type(getattr(alloc, name))
        for given in ((), (None,), ("host",)):
            with pytest.raises(TypeError):
                kind(*given)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_parts_do_not_keep_an_allocator_longer_than_its_users_do(make):
    ended: list[int] = []
    alloc = make()
    weakref.finalize(alloc, ended.append, 1)
    gc.disable()
    try:
        part = [getattr(alloc, name) for name in PARTS & public(type(alloc))]
        del alloc
        assert not ended
        del part
        assert ended
    finally:
        gc.enable()


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
    alloc.history.attach_trace_tracker(lambda *entry: seen.append(repr(alloc)))
    alloc.limits.add_free_memory_callback(lambda: seen.append(repr(alloc)))
    alloc.record_history()
    alloc.free(alloc.malloc(700))
    assert len(seen) >= 3 and all(text.startswith("<Allocator on ") for text in seen)


# --- what is checked in one place ---


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_memory_fraction_out_of_range_is_refused(alloc, fraction):
    with pytest.raises(RequestError, match="invalid memory fraction"):
        alloc.limits.memory_fraction = fraction


@pytest.mark.parametrize("kind", ["caching", "stream-ordered"])
def test_a_limit_is_a_size_or_none(kind):
    alloc = MAKERS[kind]()
    alloc.limit = "64MiB"
    assert (alloc.limit, alloc.limits.memory_fraction) == (64 * MIB, 1 / 16)
    alloc.limits.memory_fraction = 0.5
    assert alloc.limit == 512 * MIB
    with pytest.raises(SettingsError):
        alloc.limit = "a lot"
    assert alloc.limit == 512 * MIB
    alloc.limit = None
    assert (alloc.limit, alloc.limits.memory_fraction) == (None, 1.0)


@pytest.mark.parametrize("size", [1 << 64, 1 << 200])
def test_a_size_that_no_device_has_is_out_of_memory(alloc, size):
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(size)
    assert caught.value.facts.too_large and caught.value.facts.requested == size


def test_only_public_names_are_in_the_package():
    assert sorted(dir(allotment)) == sorted(allotment.__all__)
