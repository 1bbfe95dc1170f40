"""Compares what PyTorch's allocator reports in two processes, and finds the first difference."""

from __future__ import annotations

import re
from typing import Any


def in_settled_order(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a history in which one call releases segments in order of the pools' creation, then by stream.

    PyTorch keeps unused pools in a hash table, and sorts free blocks by the handle of their stream, which is an address
    that the driver chose: both orders are random. The order among segments of one stream in one pool stays.
    """

    def place(freed: dict[str, Any]) -> tuple[str, str]:
        return pool_of.get(freed["addr"], ""), str(freed["stream"])

    pool_of: dict[int, str] = {}
    settled: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    for entry in trace:
        if entry["action"] in ("segment_alloc", "segment_map"):
            pool_of[entry["addr"]] = entry["user_metadata"]
        if run and (entry["action"] != run[0]["action"] or entry["frames"] != run[0]["frames"]):
            settled += sorted(run, key=place)
            run = []
        if entry["action"] in ("segment_free", "segment_unmap"):
            run.append(entry)
        else:
            settled.append(entry)
    return settled + sorted(run, key=place)


class Places:
    """Names addresses of a run by the order in which the driver returned them, since the numbers differ by process.

    Memory mapped behind a place belongs to it, as segments grow, and so does memory that reuses a released place.
    """

    def __init__(self, trace: list[dict[str, Any]]) -> None:
        self.ends: dict[int, int] = {}
        for entry in trace:
            if entry["action"] in ("segment_alloc", "segment_map"):
                base = self._around(entry["addr"], grown=True)
                base = entry["addr"] if base is None else base
                self.ends[base] = max(self.ends.get(base, 0), entry["addr"] + entry["size"])
        self.names = {base: number for number, base in enumerate(self.ends)}

    def _around(self, address: int, grown: bool = False) -> int | None:
        return next((base for base, end in self.ends.items() if base <= address < end + grown), None)

    def instead_of_addresses(self, report: Any) -> Any:
        """Return a report with places instead of addresses."""
        if isinstance(report, dict):
            return {
                key: self.place(value) if key in ("addr", "address") else self.instead_of_addresses(value)
                for key, value in report.items()
            }
        if isinstance(report, list):
            return [self.instead_of_addresses(part) for part in report]
        return without_others(report)

    def place(self, address: int) -> str:
        base = self._around(address)
        return "elsewhere" if base is None else f"place {self.names[base]} + {address - base}"


def without_others(text: Any) -> Any:
    """Return an error's text without the memory of other processes."""
    if not isinstance(text, str):
        return text
    return re.sub(r" of which [\d.]+ \w+ is free|Process \d+ has [\d.]+ \w+ memory in use\. ", "", text)


def difference(a: Any, b: Any, place: str = "") -> str | None:
    """Return the first difference between two reports."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *[key for key in b if key not in a]]:
            if key not in a or key not in b:
                return f"{place}.{key}: only {'native' if key in a else 'deep'} has it"
            differs = difference(a[key], b[key], f"{place}.{key}")
            if differs:
                return differs
        return None
    if isinstance(a, list) and isinstance(b, list):
        for number, (one, other) in enumerate(zip(a, b, strict=False)):
            differs = difference(one, other, f"{place}[{number}]")
            if differs:
                return differs
        return None if len(a) == len(b) else f"{place}: {len(a)} natively, {len(b)} in deep mode"
    return None if a == b else f"{place}: {a!r} natively, {b!r} in deep mode"
