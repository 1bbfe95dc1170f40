"""The order of work: a clock for each stream and one for the host, and the work that each is ordered after.

A stream's own work is in order. It comes after another stream's work as far as it waited for an event recorded there,
after everything that the host had waited for when the work was submitted, and after what the host did before that. All
threads of the host count as one: the sanitizer does not know their locks, and assumes that two threads are in order.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = -1
"""Number of the host among the agents; a stream's number is its handle."""

Clock = dict[int, int]
"""By agent, how far its work is certain to have come."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point in an agent's work, and what comes before it."""

    agent: int
    time: int
    seen: Clock

    def comes_after(self, other: Point) -> bool:
        """Whether this is ordered after the other; work of one agent is."""
        return self.seen.get(other.agent, 0) >= other.time

    def is_ordered(self, other: Point) -> bool:
        """Whether one of the two comes after the other, in either order of reporting."""
        return self.comes_after(other) or other.comes_after(self)

    def is_within(self, clock: Clock) -> bool:
        """Whether a clock has reached this moment."""
        return clock.get(self.agent, 0) >= self.time


class Clocks:
    """The clocks. The caller holds a lock."""

    def __init__(self) -> None:
        self._seen: dict[int, Clock] = {HOST: {}}
        self._events: dict[int, Clock] = {}

    def _clock(self, agent: int) -> Clock:
        return self._seen.setdefault(agent, {})

    def moment(self, agent: int) -> Point:
        """Return a new moment after all work that the agent has been given; on a stream, the host submits it now."""
        clock = self._clock(agent)
        if agent != HOST:
            _join(clock, self._seen[HOST])
        clock[agent] = clock.get(agent, 0) + 1
        return Point(agent, clock[agent], dict(clock))

    def now(self, agent: int) -> Point:
        """Return the agent's current moment, without new work."""
        clock = dict(self._clock(agent))
        if agent != HOST:
            _join(clock, self._seen[HOST])
        return Point(agent, clock.get(agent, 0), clock)

    def given(self) -> Clock:
        """Return how much work each agent has been given so far, done or not."""
        return {agent: clock.get(agent, 0) for agent, clock in self._seen.items()}

    def record(self, event: int, stream: int) -> None:
        self._events[event] = dict(self.moment(stream).seen)

    def wait(self, stream: int, event: int) -> None:
        _join(self._clock(stream), self._events.get(event, {}))

    def host_waited_for_event(self, event: int) -> None:
        _join(self._seen[HOST], self._events.get(event, {}))

    def host_waited_for_stream(self, stream: int) -> None:
        _join(self._seen[HOST], self._clock(stream))

    def host_waited_for_all(self) -> None:
        for agent, clock in self._seen.items():
            if agent != HOST:
                _join(self._seen[HOST], clock)


def latest_of(one: Clock, other: Clock) -> Clock:
    """Return the later of both clocks for each agent."""
    both = dict(one)
    _join(both, other)
    return both


def _join(clock: Clock, other: Clock) -> None:
    for agent, time in other.items():
        if clock.get(agent, 0) < time:
            clock[agent] = time
