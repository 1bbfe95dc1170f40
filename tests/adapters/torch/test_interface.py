"""The framework interface of deep mode, called as the compiled torch allocator calls it, without PyTorch."""

import pytest

from helpers.bare_packages import import_bare
from helpers.child import output_of

BEGIN = """
from helpers.framework_interface import interface_over_simulated_devices
interface, allocators = interface_over_simulated_devices()
tables = [interface.entry_points(device) for device in range(2)]
"""


@pytest.fixture(autouse=True)
def built():
    try:
        import_bare("allotment.torch._deep.interface")
    except ImportError as error:
        pytest.skip(f"deep mode is for Linux: {error}")


def reported(program):
    return output_of(BEGIN + program).splitlines()


def test_the_owner_of_an_address_is_found_without_an_exception():
    """A device refuses an unknown address without an exception: an ordinary free finds the owner that way."""
    assert reported("""
from allotment import errors

made = []
before = errors.AddressError.__init__
errors.AddressError.__init__ = lambda self, *facts: (made.append(facts), before(self, *facts))[1]
_, far = tables[1].allocate(2 << 20), tables[1].allocate(3 << 20)
print(tables[0].free(far), interface.was_unknown_address(), tables[1].free(far), len(made))
print(interface.message(0) == f"invalid device pointer: {far:#x}", len(made))
""") == ["0 1 1 0", "True 1"]


def test_a_failure_other_than_an_unknown_address_is_distinguished():
    assert reported("""
tables[0].free(0x1234)
print(tables[0].allocate(2 << 30), interface.was_unknown_address())
""") == ["None 0"]


def test_pools_are_refused_in_pytorchs_words_by_the_reason_and_not_by_ours():
    assert reported("""
print(interface.pool_use_count(0, 0, 999), interface.failure()[0].text.decode())
tables[0].end_allocate_to_pool((0, 999))
print(interface.message(0))
tables[0].begin_allocate_to_pool((0, 7))
tables[0].begin_allocate_to_pool((0, 7))
print(interface.message(0))
""") == [
        "-1 Could not find pool of id",
        "endAllocatePool: not currently recording to mempool_id",
        "beginAllocateToPool: already recording to mempool_id",
    ]


def test_a_tag_with_words_of_another_failure_in_its_name_does_not_change_pytorchs_words():
    assert reported("""
import allotment
with allotment.tag("already recording"):
    allocators[0].malloc(1)
pool = allocators[0].snapshot()["segments"][0]["segment_pool_id"]
tables[0].end_allocate_to_pool(pool)
print(interface.message(0))
""") == ["endAllocatePool: not currently recording to mempool_id"]
