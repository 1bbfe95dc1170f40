"""Each call to the device fails once, or all calls from one on fail; in different workloads."""

import pytest

from helpers.effort import sample
from helpers.lives import LIVES, Life, lived_twice, undisturbed

FOREVER = 1 << 62

OUT_OF_MEMORY = pytest.mark.parametrize("out_of_memory", [True, False], ids=["out of memory", "device error"])
ONCE, FROM_THEN_ON = pytest.param(1, id="once"), pytest.param(FOREVER, id="from then on")
TWICE = pytest.param(2, id="twice", marks=pytest.mark.slow)


@OUT_OF_MEMORY
@pytest.mark.parametrize("times", [ONCE, TWICE, FROM_THEN_ON])
@pytest.mark.parametrize("name", LIVES)
def test_whichever_call_to_the_device_fails_nothing_is_lost(name, times, out_of_memory):
    expected, calls = undisturbed(name)
    assert sum(calls.values()) >= 15
    for after in sample(range(sum(calls.values()))):
        life = Life()
        life.device.refuse_calls(times, after, out_of_memory=out_of_memory)
        assert lived_twice(name, life) == expected, f"after {after} calls"


@OUT_OF_MEMORY
@pytest.mark.parametrize("times", [TWICE, FROM_THEN_ON])  # once: the test above does that
@pytest.mark.parametrize("name", LIVES)
def test_whichever_operation_of_the_device_fails_nothing_is_lost(name, times, out_of_memory):
    """Only one kind of call fails: the call that undoes another may then succeed, or be the only one that fails."""
    expected, calls = undisturbed(name)
    for operation, number in calls.items():
        for after in sample(range(number)):
            life = Life()
            life.device.refuse(operation, times, after, out_of_memory=out_of_memory)
            assert lived_twice(name, life) == expected, f"after {after} calls of {operation}"


@pytest.mark.parametrize("name", LIVES)
def test_a_life_can_be_lived_again_on_the_same_allocator(name):
    life = Life()
    outcomes = []
    for _ in range(3):
        outcomes.append(life.live(name))
        life.end()
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert set(outcomes[0]) <= {"done", "OutOfMemoryError", "PausedError"}
