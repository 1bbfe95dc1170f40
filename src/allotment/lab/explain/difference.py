"""Two recorded runs side by side: by line of code, not by address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from allotment.errors import RequestError
from allotment.lab.explain.report import Explanation
from allotment.lab.showing import Shown, ShownTable

__all__ = ["Comparison", "Condition", "LineChange", "compare"]

_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([0-9.]+)\s*")


@dataclass(frozen=True, slots=True)
class LineChange:
    """What a line of code held at the peak of both runs."""

    where: str
    a_bytes: int
    b_bytes: int


@dataclass(frozen=True, slots=True)
class Comparison(Shown):
    """B against A."""

    lines: list[LineChange]
    """Those that differ most first."""
    ratios: dict[str, float | None]
    """B over A; None where A has nothing."""

    def tables(self) -> list[ShownTable]:
        """The lines, and the ratios."""
        lines = [(each.where, each.a_bytes, each.b_bytes, each.b_bytes - each.a_bytes) for each in self.lines]
        return [
            ShownTable("In use at the peak, by line", ("where", "a_bytes", "b_bytes", "change_bytes"), lines),
            ShownTable("B over A", ("ratio", "value"), list(self.ratios.items())),
        ]


def compare(a: Explanation, b: Explanation) -> Comparison:
    """What changed from A to B at their peaks."""
    held_a = {holder.where: holder.bytes for holder in a.peak.holders}
    held_b = {holder.where: holder.bytes for holder in b.peak.holders}
    lines = [LineChange(where, held_a.get(where, 0), held_b.get(where, 0)) for where in {**held_a, **held_b}]
    return Comparison(
        lines=sorted(lines, key=lambda line: (-abs(line.b_bytes - line.a_bytes), line.where)),
        ratios={
            "peak_reserved": _ratio(b.peak.reserved_bytes, a.peak.reserved_bytes),
            "peak_live": _ratio(b.peak.live_bytes, a.peak.live_bytes),
            "waste": _ratio(b.waste.total, a.waste.total),
        },
    )


def _ratio(over: int, under: int) -> float | None:
    return over / under if under else None


@dataclass(frozen=True, slots=True)
class Condition:
    """Something about the ratios that is not to be, such as "peak_reserved > 1.05"."""

    ratio: str
    relation: str
    bound: float

    @staticmethod
    def parse(text: str, known: tuple[str, ...] = ("peak_reserved", "peak_live", "waste")) -> Condition:
        """Raises RequestError for what is not a ratio, a relation and a number."""
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
        """Whether it is so. Of a ratio that is not there nothing is."""
        value = comparison.ratios[self.ratio]
        if value is None:
            return False
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.relation]
