"""Devices written in Python: two of them run the contract, and the trampolines are tested method by method."""

import sys

import pytest

from allotment._core.contract.operations import OPERATIONS
from allotment._core.contract.probe import Capability, Probe, Share, Status, StatusError
from allotment._core.contract.raising import error_for
from allotment._devices.python.backend import Backend
from allotment.errors import AddressError, RequestError, StreamError, UnsupportedError
from allotment.testing import BackendContract
from helpers.examples import load_example
from helpers.queue_device import QueueDevice

NAMES = {operation.name for operation in OPERATIONS}
METHOD_OF = {operation.name: operation.method for operation in OPERATIONS if operation.method}
OPTIONAL = [operation.name for operation in OPERATIONS if operation.name not in (*METHOD_OF, "describe")]


class Minimal(Backend):
    """The first version that the author of a new accelerator writes."""

    def __init__(self):
        super().__init__()
        self.segments = {}

    def allocate(self, size, stream):
        if size > 1 << 30:
            raise MemoryError
        address = max((start + length for start, length in self.segments.items()), default=4096)
        self.segments[address] = size
        return address

    def free(self, address, size):
        if self.segments.pop(address, None) != size:
            raise AddressError("not a segment", address)


class TestMinimalContract(BackendContract):
    @pytest.fixture
    def device(self):
        return Minimal()


class TestQueueDeviceContract(BackendContract):
    exact_memory_info = True

    @pytest.fixture
    def device(self):
        return QueueDevice()

    def hold(self, device, stream):
        return device.hold(stream).release

    def launch(self, device, stream):
        device.launch(stream)


@pytest.mark.skipif(sys.platform == "win32", reason="the file device maps memory as POSIX systems do")
class TestFileDeviceContract(BackendContract):
    exact_memory_info = True

    @pytest.fixture
    def device(self, tmp_path):
        device = load_example("file_device").FileDevice(64 << 20, directory=tmp_path)
        yield device
        device.close()


# An argument for each role, and what a method may return for each: the operation returns the same.
ARGUMENT_OF = {
    "bytes": 4096, "address": 1 << 40, "stream": 12, "event": 13, "chunk": 11, "graph": 20, "node": 15, "device": 3,
    "share": Share.FABRIC, "flag": True, "data": b"\5\0\0\0",
}  # fmt: skip
RESULT_OF = {
    "bytes": 65536, "address": 2**64 - 8192, "stream": 2**64 - 1, "event": 13, "chunk": 19, "capture": 14, "graph": 21,
    "nodes": (15, 16, 17), "ready": False, "data": b"\0" * 64,
}  # fmt: skip
ARGUMENTS = {
    operation.name: tuple(ARGUMENT_OF[value.role] for value in operation.parameters)
    for operation in OPERATIONS
    if not operation.is_special
}


def result_of(operation):
    results = tuple(RESULT_OF[value.role] for value in operation.results)
    return results if len(results) > 1 else results[0] if results else None


def device_that(answer, operations=OPTIONAL):
    """Make a device with these operations, each of which calls `answer(operation, arguments)`."""

    def method(operation):
        return lambda self, *arguments: answer(operation, arguments)

    names = {METHOD_OF.get(name, name): method(name) for name in (*METHOD_OF, *operations)}
    return type("Answering", (Backend,), names)()


def device_that_returns(result, operations=OPTIONAL):
    return device_that(lambda operation, arguments: result, operations)


def device_that_raises(error, operations=OPTIONAL):
    def answer(operation, arguments):
        raise error

    return device_that(answer, operations)


def failure(device, operation):
    """Return the status with which an operation fails, and the exception that its caller would then raise."""
    with pytest.raises(StatusError) as caught:
        getattr(Probe(device), operation)(*ARGUMENTS[operation])
    assert caught.value.operation == operation
    return caught.value.status, error_for(device, caught.value.status, operation)


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if not each.is_special], ids=lambda each: each.name)
def test_a_method_gets_the_arguments_and_its_result_is_returned(operation):
    calls = []
    arguments, result = ARGUMENTS[operation.name], result_of(operation)

    def answer(called, arguments):
        calls.append((called, arguments))
        return result

    assert getattr(Probe(device_that(answer)), operation.name)(*arguments) == result
    assert set(calls) == {(operation.name, arguments)}


@pytest.mark.parametrize(
    ("operation", "returned", "given"),
    [
        ("stream_query", True, True),
        ("capture_status", 0, 0),
        ("node_predecessors", {18}, (18,)),
        ("capture_terminals", [], ()),
        ("segment_export", bytearray(b"handle"), b"handle"),
        ("memory_info", (0, 0), (0, 0)),
        ("ordered_usage", (0, 5, 6, 7), (0, 5, 6, 7)),
    ],
)
def test_a_result_may_take_other_forms_too(operation, returned, given):
    assert getattr(Probe(device_that_returns(returned)), operation)(*ARGUMENTS[operation]) == given


# What a class offers.


def test_a_device_with_allocate_and_free_has_nothing_else():
    probe = Probe(Minimal())
    assert probe.operations == {"segment_allocate", "segment_free", "describe"}
    assert probe.capabilities == 0
    with pytest.raises(UnsupportedError, match="event_query"):
        probe.event_query(1)


def test_a_device_with_every_method_has_every_operation_and_capability():
    probe = Probe(device_that_returns(None))
    assert probe.operations == NAMES
    not_methods = Capability.HOST | Capability.RECORDED | Capability.UNCHECKED
    assert probe.capabilities == ~not_methods & sum(Capability)


def test_name_index_and_host_are_passed_to_the_base_class():
    class Named(Minimal):
        def __init__(self):
            Backend.__init__(self, name="tape", index=3, host=True)

    device = Named()
    assert (device.name, device.index, Probe(device).capabilities) == ("tape", 3, Capability.HOST)


def test_a_device_is_named_after_its_class_by_default():
    assert Minimal().name == "Minimal"


def test_a_subclass_need_not_call_the_base_class():
    class Careless(Minimal):
        def __init__(self, anything):
            self.segments = {}

    assert Probe(Careless("anything")).segment_allocate(10) == 4096


@pytest.mark.parametrize("defined", ["allocate", "free", None])
def test_allocate_and_free_must_be_defined(defined):
    methods = {defined: lambda self, *arguments: None} if defined else {}
    with pytest.raises(TypeError, match="must"):
        type("Incomplete", (Backend,), methods)()


def test_half_of_what_belongs_together_is_an_error_that_names_the_other_half():
    with pytest.raises(TypeError, match=r"defines chunk_export and must then also define chunk_import"):
        device_that_returns(None, ["chunk_export"])


def test_what_is_not_callable_is_no_method():
    with pytest.raises(TypeError, match=r"Minimal2\.memory_info is not a method but 5"):
        type("Minimal2", (Minimal,), {"memory_info": 5})()


def test_none_takes_a_method_away_again():
    assert "memory_info" in Probe(QueueDevice()).operations
    assert "memory_info" not in Probe(type("Silent", (QueueDevice,), {"memory_info": None})()).operations


@pytest.mark.parametrize("operation", OPTIONAL)
def test_a_method_that_is_not_defined_says_so(operation):
    with pytest.raises(UnsupportedError, match=f"Minimal does not define {operation}"):
        getattr(Minimal(), operation)(*ARGUMENTS[operation])


# What methods raise.


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (MemoryError("full"), Status.OUT_OF_MEMORY, "MemoryError: full"),
        (UnsupportedError("cannot"), Status.UNSUPPORTED, "UnsupportedError: cannot"),
        (StreamError("which?"), Status.INVALID, "StreamError: which?"),
        (AddressError("where?", 5), Status.INVALID, "AddressError: where?"),
        (RequestError("from inside itself"), Status.DEVICE_ERROR, "RequestError: from inside itself"),
        (NotImplementedError(), Status.DEVICE_ERROR, "NotImplementedError"),
        (StopIteration(), Status.DEVICE_ERROR, "StopIteration"),
        (OSError(5, "broken"), Status.DEVICE_ERROR, "OSError: [Errno 5] broken"),
        (Unprintable(), Status.DEVICE_ERROR, "Unprintable, whose text cannot be shown"),
        (KeyboardInterrupt(), Status.DEVICE_ERROR, "KeyboardInterrupt"),
        (SystemExit(3), Status.DEVICE_ERROR, "SystemExit: 3"),
        (GeneratorExit(), Status.DEVICE_ERROR, "GeneratorExit"),
        (ValueError("ü" * 2000), Status.DEVICE_ERROR, "ValueError: " + "ü" * 506),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_a_method_raises_becomes_a_status_and_stays_the_cause(error, status, text):
    seen, raised = failure(device_that_raises(error), "segment_allocate")
    assert seen == status
    assert raised.__cause__ is error
    assert str(raised) == f"Answering: allocate failed: {text}"


@pytest.mark.parametrize("operation", ARGUMENTS)
def test_every_method_may_raise(operation):
    status, raised = failure(device_that_raises(KeyError(operation)), operation)
    assert status == raised.status == Status.DEVICE_ERROR
    assert raised.operation == operation
    assert raised.__cause__.args == (operation,)


def test_a_method_with_other_parameters_fails_with_pythons_words():
    device = type("Wrong", (Minimal,), {"allocate": lambda self: 4096})()
    _, raised = failure(device, "segment_allocate")
    assert "positional argument" in str(raised)


# What methods return.


def assert_is_named_as_wrong(operation, result, wrong):
    status, raised = failure(device_that_returns(result), operation)
    assert status == Status.DEVICE_ERROR
    assert isinstance(raised.__cause__, TypeError)
    method = METHOD_OF.get(operation, operation)
    assert f"{method} returned {wrong!r}"[:80] in str(raised)
    assert str(raised).endswith("was expected")


BAD_NUMBERS = [None, 0, -1, 2**64, 10**400, 4096.0, "4096", b"4096", object]


@pytest.mark.parametrize("result", BAD_NUMBERS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize(
    "operation",
    [
        "segment_allocate", "range_reserve", "chunk_create", "granularity", "stream_create", "event_create",
        "capture_begin", "segment_import", "chunk_import", "pinned_allocate", "ordered_allocate",
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_one_is_a_device_error(operation, result):
    assert_is_named_as_wrong(operation, result, wrong=result)


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        ("segment_allocate", 2**64 - 1),
        ("capture_status", None),
        ("capture_status", -1),
        ("capture_end", "graph"),
        ("stream_query", None),
        ("stream_query", 1),
        ("event_query", None),
        ("event_query", "yes"),
        ("memory_info", None),
        ("memory_info", 5),
        ("memory_info", (5,)),
        ("memory_info", (1, 2, 3)),
        ("memory_info", (6, 5)),
        ("ordered_usage", None),
        ("ordered_usage", (1, 2, 3)),
        ("capture_terminals", None),
        ("capture_terminals", 5),
        ("segment_export", None),
        ("segment_export", "handle"),
        ("segment_export", b""),
        ("chunk_export", b"\0" * 5000),
    ],
)
def test_a_result_of_the_wrong_kind_is_a_device_error(operation, result):
    assert_is_named_as_wrong(operation, result, wrong=result)


@pytest.mark.parametrize(
    ("operation", "result", "wrong"),
    [
        ("memory_info", (-1, 5), -1),
        ("memory_info", (None, 5), None),
        ("ordered_usage", (1, 2, 3, -4), -4),
        ("capture_terminals", [5, -6], -6),
        ("node_predecessors", ["five"], "five"),
    ],
)
def test_a_wrong_number_inside_a_result_is_named(operation, result, wrong):
    assert_is_named_as_wrong(operation, result, wrong)


def test_an_address_may_be_any_kind_of_integer():
    class Index:
        def __index__(self):
            return 4096

    assert Probe(device_that_returns(Index())).segment_allocate(1) == 4096
