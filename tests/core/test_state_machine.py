"""Any sequence of calls, against a model that knows only the holder of each block."""

from hypothesis import HealthCheck, settings

from helpers.allocator_machine import AllocatorMachine
from helpers.effort import some

AllocatorMachine.TestCase.settings = settings(
    max_examples=some(150),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_any_sequence_of_calls = AllocatorMachine.TestCase
