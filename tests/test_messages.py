"""Error messages name the object, what is wrong with it, and what to do. One example for each kind of message."""

import importlib
import pickle
import re
import sys

import pytest

import allotment
from allotment import cpu
from allotment.devices import HostDevice
from helpers.child import output_of


class Refusing(allotment.Backend):
    """A device whose memory is broken."""

    def allocate(self, size: int, stream: int) -> int:
        raise OSError("the cable is loose")

    def free(self, address: int, size: int) -> None:
        pass


@pytest.fixture
def allocator():
    return allotment.Allocator("sim:1GiB")


def says(error, call, *arguments, **named):
    with pytest.raises(error) as caught:
        call(*arguments, **named)
    return str(caught.value)


# Objects that do not fit each other.


def test_a_stream_of_another_device_with_the_same_name_is_distinguished(allocator):
    stream = allotment.Stream(allotment.SimulatedDevice(1 << 30))
    text = says(allotment.StreamError, allocator.malloc, 512, stream)
    assert repr(stream) in text and "another device object with the same name, sim:1GiB" in text
    assert "Stream(allocator)" in text


def test_an_event_of_another_device_is_named_with_the_stream(allocator):
    stream, other = allotment.Stream(allocator), allotment.Stream(allotment.SimulatedDevice(1 << 30))
    text = says(allotment.StreamError, stream.wait, other.record())
    assert repr(stream) in text and repr(other) in text and "another device" in text


def test_a_class_given_as_a_device_asks_for_an_object():
    assert "pass an object of it as the device: Refusing()" in says(TypeError, allotment.Allocator, Refusing)


def test_what_is_neither_a_name_nor_a_device_is_named():
    assert says(TypeError, allotment.Allocator, 3) == (
        'a device must be a name such as "cuda:0" or a device object, not int'
    )
    assert says(allotment.RequestError, allotment.Allocator, "gpu").startswith("unknown device 'gpu'; use \"host\"")


def test_a_capture_of_what_is_not_a_stream_says_so():
    assert says(TypeError, allotment.capture, 3) == ("capture needs a Stream, not int; make one with Stream(allocator)")


def test_a_failing_method_of_a_device_is_named_with_the_device():
    text = says(allotment.DeviceError, allotment.Allocator(Refusing(name="tape")).malloc, 512)
    assert text == "tape: allocate failed: OSError: the cable is loose"


def test_what_a_device_lacks_is_named_with_the_device():
    text = says(allotment.UnsupportedError, allotment.Stream, Refusing(name="tape"))
    assert text == "tape does not support stream_create"


def test_a_pool_that_is_not_there_is_named_with_its_device(allocator):
    assert "pool (0, 999) on sim:1GiB" in says(allotment.PoolError, allocator.pools.release, (0, 999))


# Numbers and other plain arguments.


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a: a.malloc(1.5), TypeError, 'a size must be an int or text such as "1MiB", not float'),
        (lambda a: a.empty(1.5), TypeError, 'a size must be an int or text such as "1MiB", not float'),
        (lambda a: a.malloc("1 mile"), allotment.SizeError, "invalid size: '1 mile'; write a whole"),
        (lambda a: a.malloc("80"), allotment.SizeError, "invalid size: '80' has no unit, and 80 bytes are almost"),
        (lambda a: a.malloc(-1), allotment.SizeError, "invalid size: -1 bytes; a size is 0 or more"),
        (lambda a: a.free("0x7f"), TypeError, "an address must be an int, not str"),
        (lambda a: a.malloc(512, "left"), TypeError, "a stream must be a Stream or its handle, not str"),
        (
            lambda a: setattr(a.limits, "memory_fraction", "half"),
            TypeError,
            "a memory fraction must be a number from 0.0",
        ),
        (
            lambda a: setattr(a.limits, "memory_fraction", 2),
            allotment.RequestError,
            "invalid memory fraction: 2; give 0.0",
        ),
        (lambda a: setattr(a, "limit", "1 mile"), allotment.SettingsError, "invalid size: '1 mile'; write a whole"),
        (lambda a: a.limits.attach_out_of_memory_observer(3), TypeError, "an observer must be callable, not int"),
        (lambda a: a.empty_cache(7), allotment.PoolError, r"invalid pool id: 7; an id is \(0, n\)"),
        (lambda a: a.record_history("some"), allotment.RequestError, "enabled must be 'all', 'state' or None"),
        (
            lambda a: a.record_history(skip_actions=["malloc"]),
            allotment.RequestError,
            "unknown trace action 'malloc'; there are alloc, free_requested",
        ),
        (lambda a: a.tenant(""), allotment.RequestError, "invalid tenant name"),
        (lambda a: a.sharing.enable_peer_access("cuda:1"), TypeError, "the index of a device must be an int, not str"),
    ],
)
def test_an_argument_is_named_with_what_is_allowed(allocator, call, error, text):
    with pytest.raises(error, match=text):
        call(allocator)


@pytest.mark.parametrize(
    ("kind", "arguments", "signature"),
    [
        (
            allotment.Allocator,
            ("host", "max_split_size_mb:64"),
            "(device='host', *, settings=None, limit=None, sanitize=False)",
        ),
        (allotment.AsyncAllocator, ("host", 1), "(device='host', *, settings=None, limit=None)"),
        (allotment.SimulatedDevice, (), "(capacity, index=0, script=None)"),
        (allotment.Buffer, (), "(allocator, address, size, stream=0)"),
        (allotment.Tenant, (1,), "(allocator, name)"),
        (HostDevice, (1, 2), "(index=0, *, shareable=False)"),
        (cpu.CachingAllocator, (True,), "(*, checked=False, system=None)"),
        (cpu.Guard, (), "(cache)"),
    ],
)
def test_wrong_arguments_of_a_class_show_its_signature(kind, arguments, signature):
    text = says(TypeError, kind, *arguments)
    assert text.startswith(f"{kind.__name__}{signature}: ")
    assert "__cinit__" not in text


def test_a_capacity_is_a_size_like_any_other():
    assert allotment.SimulatedDevice("1.5GiB").capacity == 3 << 29
    assert "invalid size: 'text'" in says(allotment.SettingsError, allotment.SimulatedDevice, "text")
    assert "invalid capacity" in says(allotment.RequestError, allotment.SimulatedDevice, 0)
    assert "the index of a device must be an int, not str" in says(TypeError, allotment.SimulatedDevice, 512, "one")
    assert "invalid device index: -1" in says(allotment.RequestError, allotment.SimulatedDevice, 512, -1)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("sim:85899345920", "sim:80GiB"), ("sim:1536MiB#2", "sim:1536MiB#2"), ("sim:1.5KiB", "sim:1536B")],
)
def test_a_simulated_device_is_named_as_one_would_type_it(given, shown):
    name = allotment.Allocator(given).device.name
    assert name == shown
    assert allotment.Allocator(name).device.capacity == allotment.Allocator(given).device.capacity


# Pickles and packages.


UNPICKLABLE = {
    "allocator": lambda allocator: allocator,
    "device": lambda allocator: allocator.device,
    "buffer": lambda allocator: allocator.empty(512),
    "stream": allotment.Stream,
    "event": lambda allocator: allotment.Stream(allocator).record(),
    "tenant": lambda allocator: allocator.tenant("mine"),
    "pool": lambda allocator: allocator.pool(),
    "pool state": lambda allocator: allocator.pool().checkpoint(),
    "asynchronous allocator": lambda allocator: allotment.AsyncAllocator("sim:1GiB"),
    "pluggable allocator": lambda allocator: allotment.PluggableAllocator(lambda *_: 0, lambda *_: None),
    "cache of host memory": lambda allocator: cpu.CachingAllocator(),
    "guard": lambda allocator: cpu.Guard(None),
}


@pytest.mark.parametrize("make", UNPICKLABLE.values(), ids=UNPICKLABLE.keys())
def test_what_belongs_to_this_process_is_not_pickled_and_says_what_to_do(allocator, make):
    text = says(TypeError, pickle.dumps, make(allocator))
    assert re.match(r"cannot pickle <\w+.*: .* this process; (make|record|send)", text), text


def test_a_tag_keeps_its_name_in_a_process_that_numbers_tags_differently():
    first = allotment.tag("first")
    second = pickle.dumps(allotment.tag("second"))
    program = f"""
        import pickle, allotment
        other = allotment.tag("other")
        print(pickle.loads({second!r}).name, pickle.loads({pickle.dumps(first)!r}).name, other.name)
    """
    assert output_of(program) == "second first other\n"


def test_the_adapter_for_pytorch_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["allotment", "torch"] or name == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    text = says(ImportError, importlib.import_module, "allotment.torch")
    assert text.startswith("allotment.torch needs torch: ") and text.endswith("install it with: pip install torch")
