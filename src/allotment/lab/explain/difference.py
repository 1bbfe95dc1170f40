"""Compares two recorded runs, or two settings of one, by line of code and not by address."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from allotment.errors import RequestError
from allotment.lab.explain.kinds import KINDS
from allotment.lab.explain.report import AtPeak
from allotment.lab.explain.waste import Waste
from allotment.lab.notebook import NotebookResult, NotebookTable

__all__ = ["Comparison", "Condition", "KindChange", "LineChange", "compare"]

_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([0-9.]+)\s*")


@dataclass(frozen=True, slots=True)
class LineChange:
    """What a line of code held in both runs at the peak in use, and what its blocks pinned at the peak reserved."""

    where: str
    a_bytes: int
    b_bytes: int
    a_pinned_bytes: int
    """Free memory next to the line's blocks that these keep from being released."""
    b_pinned_bytes: int


@dataclass(frozen=True, slots=True)
class KindChange:
    """Memory of one kind in both runs at the peak in use."""

    kind: str
    a_bytes: int
    b_bytes: int


@dataclass(frozen=True, slots=True)
class Comparison(NotebookResult):
    """B against A."""

    lines: list[LineChange]
    """The lines that differ, largest difference first."""
    kinds: list[KindChange]
    """By kind of memory, see `kinds`; largest difference first."""
    ratios: dict[str, float | None]
    """B over A; None if A has nothing."""
    waste: dict[str, tuple[int, int]]
    """By cause: bytes of A and of B that were reserved and not in use."""

    @property
    def fragmentation(self) -> list[LineChange]:
        """Return the lines whose blocks pin more or less free memory, largest change first."""
        changed = [line for line in self.lines if line.a_pinned_bytes != line.b_pinned_bytes]
        return sorted(changed, key=lambda line: -abs(line.b_pinned_bytes - line.a_pinned_bytes))

    def tables(self) -> list[NotebookTable]:
        """Return the lines, what they pin, the causes of waste, and the ratios."""
        lines = [(each.where, each.a_bytes, each.b_bytes, each.b_bytes - each.a_bytes) for each in self.lines]
        pinned = [
            (each.where, each.a_pinned_bytes, each.b_pinned_bytes, each.b_pinned_bytes - each.a_pinned_bytes)
            for each in self.fragmentation
        ]
        columns = ("where", "a_bytes", "b_bytes", "change_bytes")
        causes = [(cause, a, b, b - a) for cause, (a, b) in self.waste.items()]
        kinds = [(each.kind, each.a_bytes, each.b_bytes, each.b_bytes - each.a_bytes) for each in self.kinds]
        return [
            NotebookTable("Held when most is in use, by line", columns, lines),
            NotebookTable("Held when most is in use, by kind", ("kind", *columns[1:]), kinds),
            NotebookTable("Free memory pinned when most is reserved, by line", columns, pinned),
            NotebookTable("Reserved and not in use", ("cause", *columns[1:]), causes),
            NotebookTable("B over A", ("ratio", "value"), list(self.ratios.items())),
        ]


def compare(a: AtPeak, b: AtPeak) -> Comparison:
    """Compare A and B at their peaks."""
    held, pinned = [
        [{holder.where: getattr(holder, name) for holder in each.holders} for each in peaks]
        for name, peaks in (("bytes", (a.live_peak, b.live_peak)), ("pinned_bytes", (a.peak, b.peak)))
    ]
    lines = [
        LineChange(where, *(sizes.get(where, 0) for sizes in (*held, *pinned)))
        for where in dict.fromkeys(where for sizes in (*held, *pinned) for where in sizes)
    ]
    names = [*(field.name for field in fields(Waste)), "total"]
    return Comparison(
        lines=sorted(lines, key=_order),
        kinds=_kind_changes(a, b),
        ratios={
            "peak_reserved": _ratio(b.peak_reserved_bytes, a.peak_reserved_bytes),
            "peak_live": _ratio(b.live_peak.live_bytes, a.live_peak.live_bytes),
            "waste": _ratio(b.waste.total, a.waste.total),
        },
        waste={name: (getattr(a.waste, name), getattr(b.waste, name)) for name in names},
    )


def _kind_changes(a: AtPeak, b: AtPeak) -> list[KindChange]:
    of_a, of_b = ({each.kind: each.bytes for each in peaks.live_peak.kinds} for peaks in (a, b))
    kinds = [KindChange(kind, of_a.get(kind, 0), of_b.get(kind, 0)) for kind in KINDS if kind in of_a or kind in of_b]
    return sorted(kinds, key=lambda each: (-abs(each.b_bytes - each.a_bytes), -each.b_bytes))


def _order(line: LineChange) -> tuple[int, int, str]:
    return -abs(line.b_bytes - line.a_bytes), -line.b_bytes, line.where


def _ratio(over: int, under: int) -> float | None:
    return over / under if under else None


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the ratios that must not hold, such as "peak_reserved > 1.05"."""

    ratio: str
    relation: str
    bound: float

    @staticmethod
    def parse(text: str, known: tuple[str, ...] = ("peak_reserved", "peak_live", "waste")) -> Condition:
        """Parse a ratio, a relation and a number. Raises RequestError for any other text."""
        found = _CONDITION.fullmatch(text)
        try:
            if found is not None and found[1] in known:
                return Condition(found[1], found[2], float(found[3]))
        except ValueError:
            pass
        raise RequestError(
            f"unknown condition {text!r}; use one of {', '.join(known)}, then <, <=, > or >=, then a number:"
            ' "peak_reserved > 1.05"'
        )

    def holds(self, comparison: Comparison) -> bool:
        """Whether the condition holds. It never holds for a missing ratio."""
        value = comparison.ratios[self.ratio]
        if value is None:
            return False
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.relation]
