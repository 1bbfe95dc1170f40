"""How a status becomes an exception, and how the exception of a Python device becomes its cause."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._core.contract.raising import error_for
from allotment._core.contract.table import Device
from allotment._devices.python.backend import Backend
from allotment.errors import (
    AddressError,
    DeviceError,
    InvariantError,
    OutOfMemoryError,
    OutOfMemoryFacts,
    RequestError,
    SettingsError,
    SizeError,
    StreamError,
    UnsupportedError,
)


class Failing(Backend):
    """A device that raises the exception chosen by the test."""

    allocate_raises: BaseException | None = None
    free_raises: BaseException | None = None

    def allocate(self, size, stream):
        if self.allocate_raises is not None:
            raise self.allocate_raises
        return 4096

    def free(self, address, size):
        if self.free_raises is not None:
            raise self.free_raises


def fail(device, error):
    device.allocate_raises = error
    with pytest.raises(StatusError) as caught:
        Probe(device).segment_allocate(1)
    return caught.value.status


def fail_to_free(device, error):
    device.free_raises = error
    with pytest.raises(StatusError):
        Probe(device).segment_free(4096, 1)


def test_a_status_without_words_gets_some():
    error = error_for(Device(), Status.DEVICE_ERROR, "map")
    assert type(error) is DeviceError
    assert (error.operation, error.status) == ("map", Status.DEVICE_ERROR)
    assert str(error) == "device: map failed: the device gave no reason"


def test_unsupported_has_a_class_of_its_own():
    error = error_for(Device(), Status.UNSUPPORTED, "peer_enable")
    assert type(error) is UnsupportedError
    assert error.operation == "peer_enable"


def test_an_invalid_stream_is_a_broken_precondition():
    error = error_for(Device(), Status.INVALID, "event_record")
    assert type(error) is StreamError
    assert isinstance(error, RequestError)


def test_an_invalid_handle_of_the_engine_is_a_device_error():
    assert type(error_for(Device(), Status.INVALID, "unmap")) is DeviceError


def test_an_unknown_status_is_a_device_error_that_names_it():
    assert "status 77" in str(error_for(Device(), 77, "copy"))


def test_the_exception_of_a_method_is_the_cause_once():
    device, error = Failing(), OSError("gone")
    status = fail(device, error)
    assert error_for(device, status, "segment_allocate").__cause__ is error
    assert error_for(device, status, "segment_allocate").__cause__ is None


def test_the_words_stay_when_the_exception_was_taken():
    device = Failing()
    status = fail(device, OSError("gone"))
    error_for(device, status, "segment_allocate")
    assert Probe(device).describe() == "OSError: gone"


def test_a_call_that_succeeds_in_between_leaves_the_cause():
    device, error = Failing(), OSError("gone")
    status = fail(device, error)
    Probe(device).segment_free(4096, 1)
    assert error_for(device, status, "segment_allocate").__cause__ is error


def test_the_cause_is_that_of_the_same_device():
    device, other = Failing(), Failing()
    status = fail(device, OSError("gone"))
    assert error_for(other, status, "segment_allocate").__cause__ is None
    assert Probe(other).describe() == ""


def test_the_cause_is_that_of_the_same_status():
    device = Failing()
    fail(device, MemoryError())
    assert error_for(device, Status.DEVICE_ERROR, "map").__cause__ is None


def test_failures_with_another_status_leave_the_cause():
    device, refusal = Failing(), MemoryError()
    status = fail(device, refusal)
    fail_to_free(device, OSError("gone"))
    assert error_for(device, status, "segment_allocate").__cause__ is refusal


def test_failures_of_another_device_leave_the_cause():
    device, other, error = Failing(), Failing(), OSError("gone")
    status = fail(device, error)
    fail(other, OSError("elsewhere"))
    assert error_for(device, status, "segment_allocate").__cause__ is error


@pytest.mark.threads
def test_the_cause_is_that_of_the_same_thread():
    device = Failing()
    with ThreadPoolExecutor(1) as thread:
        status = thread.submit(fail, device, OSError("gone")).result()
        assert error_for(device, status, "segment_allocate").__cause__ is None
        assert Probe(device).describe() == ""
        elsewhere = thread.submit(error_for, device, status, "segment_allocate").result()
    assert str(elsewhere.__cause__) == "gone"


def test_an_interrupt_is_not_lost_under_the_failure_of_a_clean_up():
    device, interrupt, in_clean_up = Failing(), KeyboardInterrupt(), OSError("gone")
    status = fail(device, interrupt)
    fail_to_free(device, in_clean_up)
    error = error_for(device, status, "segment_allocate")
    assert error.__cause__ is in_clean_up
    assert in_clean_up.__context__ is interrupt


def test_an_interrupt_is_chained_below_the_cause_of_the_clean_up():
    device, interrupt, in_clean_up, deeper = Failing(), KeyboardInterrupt(), OSError("gone"), ValueError()
    in_clean_up.__context__ = deeper
    fail(device, interrupt)
    fail_to_free(device, in_clean_up)
    assert deeper.__context__ is interrupt


def test_an_interrupt_is_chained_to_the_next_error_whatever_that_is():
    device, interrupt = Failing(), KeyboardInterrupt()
    fail(device, interrupt)
    assert error_for(device, Status.OUT_OF_MEMORY, "chunk_create").__cause__ is interrupt


def test_an_interrupt_that_was_raised_is_not_named_again():
    device, in_clean_up = Failing(), OSError("gone")
    error_for(device, fail(device, KeyboardInterrupt()), "segment_allocate")
    fail_to_free(device, in_clean_up)
    assert in_clean_up.__context__ is None


def test_a_refusal_that_was_overcome_is_no_cause():
    device = Failing()
    status = fail(device, MemoryError("first"))
    device.allocate_raises = None
    Probe(device).segment_allocate(1)
    assert error_for(device, status, "segment_allocate").__cause__ is None


def test_refusals_that_were_overcome_are_not_chained_to_each_other():
    device, second = Failing(), MemoryError("second")
    fail(device, MemoryError("first"))
    fail(device, second)
    assert second.__context__ is None


def test_nothing_of_a_taken_exception_is_kept_alive():
    class Payload:
        pass

    device, payload = Failing(), Payload()
    alive = weakref.ref(payload)
    status = fail(device, OSError(payload))
    device.allocate_raises = None
    error_for(device, status, "segment_allocate")
    del payload
    gc.collect()
    assert alive() is None


def test_an_exception_that_was_not_taken_is_deleted_with_its_device():
    device = Failing()
    alive = weakref.ref(device)
    fail(device, OSError("gone"))
    del device
    gc.collect()
    assert alive() is None


FACTS = OutOfMemoryFacts(
    device="sim",
    device_index=0,
    requested=1,
    rounded=512,
    segment_size=2 << 20,
    device_free=0,
    device_total=1 << 20,
    limit=None,
    allocated=0,
    reserved=0,
    private_free=0,
    largest_free=0,
    stream=0,
)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError(FACTS),
        RequestError("no"),
        SizeError("no", -1),
        AddressError("no", 16),
        SettingsError("no", key="backend", value="x", allowed="native"),
        DeviceError("no", operation="map", status=3),
        InvariantError("a rule", "broke"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("passed_on", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_an_error_from_another_process_is_what_it_was_there(error, passed_on):
    arrived = passed_on(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
