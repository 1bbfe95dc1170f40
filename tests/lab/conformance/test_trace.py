import pytest

from allotment.lab.conformance.file import TraceEntry
from allotment.lab.conformance.trace import Tape, TraceMismatch

DEFAULT, FIRST, SECOND = (0, 0), (0, 1), (0, 2)


def completed(address: int) -> TraceEntry:
    return TraceEntry("free_completed", address, 100, 0)


def released(address: int) -> TraceEntry:
    return TraceEntry("segment_free", address, 2 << 20, 0)


ALLOC = TraceEntry("alloc", 512, 100, 0)


def played(
    recorded: list[TraceEntry], observed: list[tuple[TraceEntry, tuple[int, int]]], any_order: bool = False
) -> bool:
    tape = Tape(recorded)
    for entry, pool in observed:
        tape.observe(entry, pool)
    return tape.end_op(any_order)


def test_entries_in_recorded_order_are_equal():
    assert played([completed(512), ALLOC], [(completed(512), DEFAULT), (ALLOC, DEFAULT)])


def test_completions_inside_one_run_may_come_in_any_order():
    tape = Tape([completed(512), completed(1024), ALLOC])
    for entry in (completed(1024), completed(512), ALLOC):
        tape.observe(entry, DEFAULT)
    assert not tape.end_op()
    assert tape.reordered_completions == {512, 1024}


def test_completions_of_two_runs_may_not_change_places():
    recorded = [completed(512), ALLOC, completed(1024)]
    with pytest.raises(TraceMismatch) as mismatch:
        played(recorded, [(completed(1024), DEFAULT), (ALLOC, DEFAULT), (completed(512), DEFAULT)])
    assert (mismatch.value.index, mismatch.value.expected, mismatch.value.got) == (0, completed(512), completed(1024))


def test_releases_of_different_pools_may_change_places():
    played([released(512), released(1024)], [(released(1024), FIRST), (released(512), SECOND)])


def test_releases_of_one_pool_keep_their_order():
    with pytest.raises(TraceMismatch) as mismatch:
        played([released(512), released(1024)], [(released(1024), FIRST), (released(512), FIRST)])
    assert mismatch.value.index == 0


def test_with_any_order_only_the_entries_of_one_address_keep_theirs():
    freed, allocated = completed(512), TraceEntry("alloc", 512, 100, 0)
    other = TraceEntry("alloc", 4096, 100, 0)
    assert not played([freed, allocated, other], [(other, FIRST), (freed, FIRST), (allocated, FIRST)], any_order=True)
    with pytest.raises(TraceMismatch):
        played([freed, allocated, other], [(allocated, FIRST), (freed, FIRST), (other, FIRST)], any_order=True)


def test_an_entry_too_few_is_named_with_its_index():
    with pytest.raises(TraceMismatch) as mismatch:
        played([completed(512), completed(1024), ALLOC], [(completed(1024), DEFAULT), (ALLOC, DEFAULT)])
    assert (mismatch.value.index, mismatch.value.expected, mismatch.value.got) == (1, completed(512), ALLOC)


def test_an_entry_beyond_the_recorded_ones_is_a_mismatch():
    with pytest.raises(TraceMismatch) as mismatch:
        played([], [(ALLOC, DEFAULT)])
    assert (mismatch.value.expected, mismatch.value.got) == (None, ALLOC)


def test_recorded_entries_that_never_came_are_a_mismatch_at_the_end():
    tape = Tape([ALLOC])
    with pytest.raises(TraceMismatch) as mismatch:
        tape.end()
    assert (mismatch.value.expected, mismatch.value.got) == (ALLOC, None)


def test_upcoming_moves_with_what_was_observed():
    tape = Tape([completed(512), completed(1024), ALLOC])
    assert tape.completing_now() == {512, 1024}
    tape.observe(completed(1024), DEFAULT)
    tape.observe(completed(512), DEFAULT)
    assert tape.upcoming == ALLOC
    assert tape.completing_now() == {512, 1024}  # those of the whole op, though they are consumed
    assert tape.find(lambda entry: entry.action == "oom") is None
