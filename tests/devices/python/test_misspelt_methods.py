"""A device method that looks like a misspelt operation is reported when the class is defined."""

import warnings

import pytest

from allotment._devices.python.backend import Backend
from helpers.queue_device import QueueDevice


def nothing(self, *arguments):
    pass


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("memory_inf", "memory_info"),
        ("alocate", "allocate"),
        ("free_", "free"),
        ("granularty", "granularity"),
        ("stream_syncronize", "stream_synchronize"),
        ("capture_terminal", "capture_terminals"),
        ("pinned_alloc", "pinned_allocate"),
        ("peer_enabled", "peer_enable"),
    ],
)
def test_a_name_close_to_that_of_an_operation_is_named_in_a_warning(written, meant):
    with pytest.warns(UserWarning, match=rf"Device\.{written} is not a method of a device.*did you mean {meant}\?"):
        type("Device", (Backend,), {written: nothing})


def test_a_class_that_is_mixed_in_is_looked_at_too():
    mixed_in = type("Clock", (), {"event_recrd": nothing})
    with pytest.warns(UserWarning, match=r"Clock\.event_recrd .* did you mean event_record\?"):
        type("Device", (mixed_in, Backend), {})


@pytest.mark.parametrize("name", ["close", "launch", "submit", "hold", "read", "launched", "_alocate", "steps"])
def test_other_methods_of_a_class_are_its_own_affair(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Device", (Backend,), {name: nothing})


def test_attributes_and_operations_that_are_there_are_not_suspected():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Device", (QueueDevice,), {"frees": 3, "copies": {}, "allocate": nothing, "allocated": nothing})


def test_a_warning_is_given_once_for_the_class_that_is_wrong():
    with pytest.warns(UserWarning, match="memory_inf"):
        wrong = type("Wrong", (Backend,), {"memory_inf": nothing})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Child", (wrong,), {})
