from allotment.lab.conformance.file import ADDRESS_END, TraceEntry
from allotment.lab.conformance.script import GoldenScript

MIB = 1 << 20
GIB = 1 << 30


def script_of(*trace: TraceEntry) -> GoldenScript:
    script = GoldenScript(trace, total_memory=GIB)
    script.begin_op({"op": "alloc", "size": 4 * MIB})
    return script


class Queues:
    def __init__(self, *pending: tuple[int, int, int]) -> None:
        self.pending = list(pending)

    def pending_events(self) -> list[tuple[int, int, int]]:
        return self.pending


def test_a_segment_is_where_the_next_entry_says():
    script = script_of(TraceEntry("segment_alloc", 20 * MIB, 2 * MIB, 0))
    assert script.segment(2 * MIB, 0) == 20 * MIB


def test_a_device_refuses_where_the_next_entry_makes_room():
    for action in ("oom", "segment_free", "segment_unmap", "free_completed"):
        script = script_of(TraceEntry(action, 20 * MIB, 2 * MIB, 0))
        assert script.segment(2 * MIB, 0) is None
        assert not script.create(2 * MIB)


def test_more_than_the_device_has_is_refused():
    script = script_of(TraceEntry("segment_alloc", 20 * MIB, 2 * GIB, 0))
    assert script.segment(2 * GIB, 0) is None


def test_an_address_in_use_is_replaced_by_one_that_clashes_with_nothing():
    entry = TraceEntry("segment_alloc", 20 * MIB, 2 * MIB, 0)
    script = script_of(entry, TraceEntry("segment_alloc", 21 * MIB, 2 * MIB, 0))
    script.observe(*entry[:4], pool=(0, 0))
    assert script.segment(2 * MIB, 0) >= ADDRESS_END


def test_a_segment_that_was_not_recorded_is_made_up():
    script = script_of(TraceEntry("alloc", 512, 100, 0))
    assert script.segment(2 * MIB, 0) >= ADDRESS_END


def test_without_a_trace_a_segment_is_where_the_op_got_its_memory():
    script = GoldenScript([], total_memory=GIB)
    script.begin_op({"op": "alloc", "size": 4 * MIB, "addr": 40 * MIB})
    assert script.segment(20 * MIB, 0) == 40 * MIB


def test_a_range_begins_at_the_next_map_of_its_stream_outside_known_ranges():
    first = TraceEntry("segment_map", 20 * MIB, 20 * MIB, 7)
    inside = TraceEntry("segment_map", 40 * MIB, 20 * MIB, 7)
    other_stream = TraceEntry("segment_map", 2 * GIB, 20 * MIB, 8)
    small_pages = TraceEntry("segment_map", 3 * GIB, 2 * MIB, 7)
    second = TraceEntry("segment_map", 4 * GIB, 20 * MIB, 7)
    script = script_of(first, inside, other_stream, small_pages, second)
    assert script.reserve(GIB, 7) == 20 * MIB
    assert script.reserve(GIB, 7) == 4 * GIB


def test_a_range_whose_last_page_went_can_be_reserved_anew():
    mapped = TraceEntry("segment_map", 20 * MIB, 20 * MIB, 7)
    unmapped = TraceEntry("segment_unmap", 20 * MIB, 20 * MIB, 7)
    script = script_of(mapped, unmapped, mapped)
    assert script.reserve(GIB, 7) == 20 * MIB
    script.observe(*mapped[:4], pool=(0, 0))
    script.observe(*unmapped[:4], pool=(0, 0))
    assert script.reserve(GIB, 7) == 20 * MIB


def test_free_memory_is_that_of_the_next_refusal():
    script = script_of(TraceEntry("alloc", 512, 100, 0), TraceEntry("oom", 12345, 100, 0))
    assert script.free_memory() == 12345


def test_without_a_trace_free_memory_is_that_of_the_text():
    script = GoldenScript([], total_memory=GIB)
    script.begin_op({"op": "alloc", "size": 1, "oom": "... of which 120.48 GiB is free. Process 7 has ..."})
    assert f"{script.free_memory() / GIB:.2f}" == "120.48"


def test_an_event_has_finished_if_its_block_completes_now():
    script = script_of(TraceEntry("free_completed", 512, 100, 0), TraceEntry("alloc", 512, 100, 0))
    script.queues = Queues((1, 71, 512), (1, 72, 1024), (2, 73, 2048))
    assert script.event_finished(71)
    assert not script.event_finished(72)
    assert not script.event_finished(73)


def test_an_event_has_finished_if_a_block_behind_it_in_its_queue_completes_now():
    script = script_of(TraceEntry("free_completed", 1024, 100, 0))
    script.queues = Queues((1, 71, 512), (2, 73, 512), (1, 72, 1024))
    assert script.event_finished(71)
    assert not script.event_finished(73)


def test_events_recorded_before_a_sync_have_finished():
    script = script_of(TraceEntry("alloc", 512, 100, 0))
    script.queues = queues = Queues((1, 71, 512))
    script.synchronize()
    queues.pending.append((1, 72, 1024))
    assert script.event_finished(71)
    assert not script.event_finished(72)


def test_an_event_recorded_anew_after_a_sync_has_not_finished():
    script = script_of(TraceEntry("alloc", 512, 100, 0))
    script.queues = queues = Queues((1, 71, 512))
    script.synchronize()
    queues.pending.clear()
    script.begin_op({"op": "free"})
    queues.pending.append((1, 71, 4096))
    assert not script.event_finished(71)


def test_a_custom_allocator_gives_what_was_recorded_and_0_for_no_memory():
    script = script_of()
    script.begin_op({"op": "alloc", "own": [["alloc", 0, 2 * MIB, 7], ["alloc", 20 * MIB, 2 * MIB, 7]]})
    assert [script.own_allocate(2 * MIB, 7) for _ in range(2)] == [0, 20 * MIB]
    script.own_free(20 * MIB, 2 * MIB, 7)
    assert script.own_calls[1:] == [["alloc", 20 * MIB, 2 * MIB, 7], ["free", 20 * MIB, 2 * MIB, 7]]
