"""Compares the recorded trace, entry by entry, with the observed one.

    recorded   a  b  c  d | e  f  g ...
                          ^ start of the op under way
    observed                e  f            `upcoming` is g

An op's entries are compared when it ends. Two kinds of runs have no defined order: adjacent completions of frees, and
adjacent releases of different pools. Such a run must have the same entries, and those of one address or one pool in the
same order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from allotment._core.edge.words import Action, word_of
from allotment.lab.conformance.file import TraceEntry

PoolId = tuple[int, int]

RELEASES = frozenset([word_of(Action.SEGMENT_FREE), word_of(Action.SEGMENT_UNMAP)])


class TraceMismatch(Exception):
    """The first entry that differs from the recording; None means no entry."""

    def __init__(self, index: int, expected: TraceEntry | None, got: TraceEntry | None) -> None:
        super().__init__(f"trace[{index}]: expected {expected}, got {got}")
        self.index = index
        self.expected = expected
        self.got = got


class Tape:
    def __init__(self, recorded: Sequence[TraceEntry]) -> None:
        self._recorded = recorded
        self._start = 0
        self._observed: list[TraceEntry] = []
        self._pools: list[PoolId] = []
        self.reordered_completions: set[int] = set()
        """Addresses of blocks that completed in a different order than recorded, inside one run."""

    @property
    def position(self) -> int:
        """Index of the next entry not yet consumed."""
        return self._start + len(self._observed)

    @property
    def upcoming(self) -> TraceEntry | None:
        """The next entry not yet consumed; None at the end."""
        position = self.position
        return self._recorded[position] if position < len(self._recorded) else None

    def find(self, accepts: Callable[[TraceEntry], bool]) -> TraceEntry | None:
        """Return the first entry not yet consumed that is accepted."""
        for index in range(self.position, len(self._recorded)):
            if accepts(self._recorded[index]):
                return self._recorded[index]
        return None

    def completing_now(self) -> set[int]:
        """Return the addresses in the run of completions at the start of the op."""
        addresses = set()
        for index in range(self._start, len(self._recorded)):
            entry = self._recorded[index]
            if entry.action != "free_completed":
                break
            addresses.add(entry.address)
        return addresses

    def observe(self, entry: TraceEntry, pool: PoolId) -> None:
        self._observed.append(entry)
        self._pools.append(pool)

    def end_op(self, any_order: bool = False) -> bool:
        """Compare what was observed since the last op, and advance.

        With `any_order` only the entries of one address keep their order. Returns whether the order was
        the recorded one throughout. Raises TraceMismatch.
        """
        observed, pools, start = self._observed, self._pools, self._start
        expected = self._recorded[start : start + len(observed)]
        in_order = list(expected) == observed
        if not in_order:
            if any_order:
                self._compare_run(expected, observed, start, [entry.address for entry in observed])
            else:
                self._compare_by_runs(expected, observed, pools, start)
        self._start += len(observed)
        self._observed, self._pools = [], []
        return in_order

    def end(self) -> None:
        """Check that no recorded entry is left. Raises TraceMismatch."""
        if self.upcoming is not None:
            raise TraceMismatch(self.position, self.upcoming, None)

    def _compare_by_runs(
        self, expected: Sequence[TraceEntry], observed: Sequence[TraceEntry], pools: Sequence[PoolId], start: int
    ) -> None:
        index = 0
        while index < len(observed):
            kind = _run_kind(expected[index]) if index < len(expected) else None
            end = index + 1
            while kind and end < len(expected) and _run_kind(expected[end]) == kind:
                end += 1
            run, got = expected[index:end], observed[index:end]
            if kind == "releases":
                self._compare_run(run, got, start + index, pools[index:end])
            else:
                self._compare_run(run, got, start + index, [entry.address for entry in got])
                if list(run) != list(got):
                    self.reordered_completions.update(entry.address for entry in run)
            index = end

    @staticmethod
    def _compare_run(
        expected: Sequence[TraceEntry], observed: Sequence[TraceEntry], start: int, owners: Sequence[Hashable]
    ) -> None:
        """Require the same entries, and those of one owner in the same order; `owners` are those of `observed`."""
        unmatched = Counter(expected)
        for offset, entry in enumerate(observed):
            if not unmatched[entry]:
                missing = next((due for due in expected if due not in observed), None)
                raise TraceMismatch(start + offset, missing, entry)
            unmatched[entry] -= 1
        owner_of = dict(zip(observed, owners, strict=True))
        recorded_order = defaultdict(list)
        for entry in expected:
            recorded_order[owner_of[entry]].append(entry)
        taken: Counter[Hashable] = Counter()
        for offset, (entry, owner) in enumerate(zip(observed, owners, strict=True)):
            due = recorded_order[owner][taken[owner]]
            if due != entry:
                raise TraceMismatch(start + offset, due, entry)
            taken[owner] += 1


def _run_kind(entry: TraceEntry) -> str | None:
    if entry.action == "free_completed":
        return "completions"
    return "releases" if entry.action in RELEASES else None
