"""Streams and events: what waits for what."""

from __future__ import annotations

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment.testing._contract.ground import Busy, Ground, on_threads, refusal


class StreamContract(Ground):
    """Streams and events: what waits for what."""

    def test_created_streams_are_new_and_idle(self, probe: Probe, stream: int, other_stream: int) -> None:
        assert len({0, stream, other_stream}) == 3
        assert probe.stream_query(stream)
        assert probe.stream_query(other_stream)

    def test_an_event_never_recorded_is_ready(self, probe: Probe, stream: int, event: int) -> None:
        assert probe.event_query(event)
        probe.event_synchronize(event)
        probe.stream_wait(stream, event)
        probe.stream_synchronize(stream)
        probe.event_destroy(event)

    def test_the_default_stream_takes_events(self, probe: Probe, event: int) -> None:
        probe.event_record(event, 0)
        probe.stream_synchronize(0)
        assert probe.event_query(event)

    def test_an_event_waits_for_the_work_before_it(self, probe: Probe, busy: Busy, stream: int, event: int) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        assert not probe.event_query(event)
        assert not probe.stream_query(stream)
        finish()
        probe.event_synchronize(event)
        assert probe.event_query(event)

    def test_an_event_does_not_wait_for_the_work_after_it(
        self, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        probe.event_record(event, stream)
        probe.event_synchronize(event)
        finish = busy(stream)
        assert probe.event_query(event)
        assert not probe.stream_query(stream)
        finish()
        probe.stream_synchronize(stream)

    def test_an_event_recorded_again_stands_for_the_later_place(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.event_record(event, other_stream)
        probe.event_synchronize(event)
        assert probe.event_query(event)
        assert not probe.stream_query(stream)
        finish()
        probe.stream_synchronize(stream)

    def test_events_of_one_stream_become_ready_in_order(self, probe: Probe, busy: Busy, stream: int) -> None:
        first, second = probe.event_create(), probe.event_create()
        finish_first = busy(stream)
        probe.event_record(first, stream)
        finish_second = busy(stream)
        probe.event_record(second, stream)
        assert not probe.event_query(first)
        assert not probe.event_query(second)
        finish_first()
        finish_second()
        probe.event_synchronize(second)
        assert probe.event_query(first)

    def test_streams_do_not_wait_for_each_other(self, probe: Probe, busy: Busy, stream: int, other_stream: int) -> None:
        finish = busy(stream)
        probe.stream_synchronize(other_stream)
        assert probe.stream_query(other_stream)
        assert not probe.stream_query(stream)
        finish()
        probe.stream_synchronize(stream)
        assert probe.stream_query(stream)

    def test_a_stream_waits_for_an_event_of_another(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_wait(other_stream, event)
        behind = probe.event_create()
        probe.event_record(behind, other_stream)
        assert not probe.event_query(behind)
        finish()
        probe.stream_synchronize(other_stream)
        assert probe.event_query(behind)
        assert probe.event_query(event)

    def test_a_wait_is_for_what_the_event_stood_for_then(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        probe.event_record(event, stream)
        probe.stream_wait(other_stream, event)
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_synchronize(other_stream)
        assert probe.stream_query(other_stream)
        assert not probe.event_query(event)
        finish()
        probe.stream_synchronize(stream)

    @on_threads
    def test_waiting_for_an_event_lasts_until_it_is_ready(
        self, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        self.assert_lasts(lambda: probe.event_synchronize(event), lambda: probe.event_query(event), finish)

    @on_threads
    def test_waiting_for_a_stream_lasts_until_it_is_idle(self, probe: Probe, busy: Busy, stream: int) -> None:
        finish = busy(stream)
        self.assert_lasts(lambda: probe.stream_synchronize(stream), lambda: probe.stream_query(stream), finish)

    @on_threads
    def test_waiting_for_the_device_lasts_until_every_stream_is_idle(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int
    ) -> None:
        finish, finish_other = busy(stream), busy(other_stream)
        finish()
        self.assert_lasts(
            probe.device_synchronize,
            lambda: probe.stream_query(stream) and probe.stream_query(other_stream),
            finish_other,
        )

    def test_a_destroyed_stream_is_invalid_for_every_later_call(self, probe: Probe, stream: int, event: int) -> None:
        probe.stream_destroy(stream)
        assert refusal(probe.stream_query, stream) == Status.INVALID
        assert refusal(probe.stream_synchronize, stream) == Status.INVALID
        assert refusal(probe.stream_wait, stream, event) == Status.INVALID
        assert refusal(probe.stream_destroy, stream) == Status.INVALID
        assert probe.event_query(event)

    def test_an_event_of_a_destroyed_stream_is_refused_or_done_when_its_work_is(
        self, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_destroy(stream)
        was_done = probe.event_query(event)
        try:
            probe.event_record(event, stream)
        except StatusError as refused:
            assert refused.status == Status.INVALID
        else:
            assert probe.event_query(event) == was_done
        finish()
        probe.event_synchronize(event)
        assert probe.event_query(event)
