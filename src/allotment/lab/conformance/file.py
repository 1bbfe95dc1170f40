"""Reads a recording of an allocator's decisions from disk, and checks its shape.

A file is untrusted. The result of `read_ground_truth` holds only values of the declared kinds, within bounds that the
engine accepts; everything else is a FormatError that names the place.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from allotment._core.edge.words import ACTIONS
from allotment._rules import OLDEST, nearest_version
from allotment.errors import FormatError

MAX_BYTES = 32 << 20
"""The largest unpacked size, about twenty times a long recording; parsing takes far more memory than that."""

ADDRESS_END = 1 << 57
SIZE_END = 1 << 64
TOTAL_MEMORY_END = 1 << 50

Op = dict[str, Any]


class TraceEntry(NamedTuple):
    """One decision in the trace. For "oom" the address is the device's free memory."""

    action: str
    address: int
    size: int
    stream: int
    pool: tuple[int, int] | None = None
    """Id of the pool, if the recorded version has it."""
    user_metadata: str = ""
    internal_metadata: str = ""


class StatsPoint(NamedTuple):
    """All counters after `at` ops."""

    at: int
    stats: dict[str, int]


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The calls of one run, their results, and everything that the allocator did."""

    compat: str
    """The recorded version, one of those whose rules are known."""
    settings: str
    limit: int
    total_memory: int
    streams: list[int]
    ops: list[Op]
    trace: list[TraceEntry]
    stats: list[StatsPoint]
    final_segments: list[dict[str, Any]]
    final_settings: dict[str, Any]
    waited: frozenset[int] = frozenset()
    """Ops that waited for their first completions instead of finding them finished."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold: a description for errors, and a check."""

    words: str
    holds: Callable[[Any], bool]
    optional: bool = False


Shape = Mapping[str, Kind]


def optional(kind: Kind) -> Kind:
    return Kind(kind.words, kind.holds, optional=True)


def nullable(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.holds(value))


def list_of(kind: Kind, length: int | None = None) -> Kind:
    def holds(value: Any) -> bool:
        return isinstance(value, list) and length in (None, len(value)) and all(map(kind.holds, value))

    return Kind(f"a list of {kind.words}", holds)


def whole_number(words: str, end: int, start: int = 0) -> Kind:
    return Kind(words, lambda value: type(value) is int and start <= value < end)


ADDRESS = whole_number("an address", ADDRESS_END)
SIZE = whole_number("a number of bytes", SIZE_END)
STREAM = whole_number("an index of a stream", 1 << 32)
HANDLE = whole_number("a stream handle", 1 << 64)
NUMBER = whole_number("a number", 1 << 63)
COUNTER = whole_number("a counter", 1 << 64, start=-(1 << 63))
THREAD = whole_number("a thread number", 1 << 31)
BYTE = whole_number("a byte", 256)
TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
FRACTION = Kind("a fraction", lambda value: type(value) in (int, float) and math.isfinite(value))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
OBJECTS = list_of(OBJECT)
POOL_ID = list_of(whole_number("a pool number", 1 << 32), length=2)
STATS = Kind("counters by name", lambda value: isinstance(value, dict) and all(map(COUNTER.holds, value.values())))

_RECORDING: Shape = {
    "torch": optional(TEXT),
    "waited": optional(list_of(NUMBER)),
    "conf": TEXT,
    "limit": SIZE,
    "total_memory": whole_number("a device's memory in bytes", TOTAL_MEMORY_END, start=1),
    "streams": list_of(HANDLE),
    "ops": OBJECTS,
    "trace": OBJECTS,
    "stats": OBJECTS,
    "segments": OBJECTS,
    "allocator_settings": OBJECT,
}
_NOTES: Shape = {
    "pool_id": optional(POOL_ID),
    "user_metadata": optional(TEXT),
    "internal_metadata": optional(TEXT),
}
_ENTRY: Shape = {"action": TEXT, "addr": ADDRESS, "size": SIZE, "stream": HANDLE, **_NOTES}
_OOM_ENTRY: Shape = {"action": TEXT, "device_free": SIZE, "size": SIZE, "stream": HANDLE, **_NOTES}
_STATS_POINT: Shape = {"at": NUMBER, "stats": STATS}


def read_ground_truth(path: Path, op_shapes: Mapping[str, Shape]) -> GroundTruth:
    """Read the recording, with ops of the given shapes. Raises FormatError."""
    try:
        content = json.loads(_unpacked(path), parse_constant=_refused_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise FormatError(f"not a recording: {reason}") from None
    _check_shape("recording", content, _RECORDING)
    streams = content["streams"]
    for index, op in enumerate(content["ops"]):
        _check_op(f"ops[{index}]", op, op_shapes, len(streams))
    return GroundTruth(
        compat=nearest_version(content["torch"]) if "torch" in content else OLDEST,
        settings=content["conf"],
        limit=content["limit"],
        total_memory=content["total_memory"],
        streams=streams,
        ops=content["ops"],
        trace=[_entry(f"trace[{index}]", entry) for index, entry in enumerate(content["trace"])],
        stats=_stats_points(content["stats"], len(content["ops"])),
        final_segments=content["segments"],
        final_settings=content["allocator_settings"],
        waited=frozenset(content.get("waited", ())),
    )


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FormatError(error.strerror or str(error)) from None
    except (EOFError, zlib.error) as error:
        raise FormatError(f"damaged gzip file: {error}") from None
    if len(content) > MAX_BYTES:
        raise FormatError(f"unpacks to more than {MAX_BYTES >> 20} MiB")
    return content


def _refused_constant(name: str) -> None:
    raise FormatError(f"not a recording: {name} is not a number")


def _check_shape(place: str, value: Any, shape: Shape) -> None:
    if not isinstance(value, dict):
        raise FormatError(f"{place} is not an object")
    for name, kind in shape.items():
        if name not in value:
            if not kind.optional:
                raise FormatError(f"{place} has no {name!r}")
        elif not kind.holds(value[name]):
            raise FormatError(f"{place}: {name!r} is not {kind.words}: {_shortened(value[name])}")


def _check_op(place: str, op: Op, op_shapes: Mapping[str, Shape], stream_count: int) -> None:
    name = op.get("op")
    shape = op_shapes.get(name) if isinstance(name, str) else None
    if shape is None:
        raise FormatError(f"{place}: unknown op {_shortened(name)}")
    _check_shape(f"{place} ({name})", op, shape)
    for field, kind in shape.items():
        if kind.holds is STREAM.holds and field in op and op[field] >= stream_count:
            raise FormatError(f"{place} ({name}): there is no stream {op[field]}")


def _entry(place: str, entry: dict[str, Any]) -> TraceEntry:
    oom = entry.get("action") == "oom"
    _check_shape(place, entry, _OOM_ENTRY if oom else _ENTRY)
    if entry["action"] not in ACTIONS:
        raise FormatError(f"{place}: unknown action {_shortened(entry['action'])}")
    return entry_of(entry)


def entry_of(entry: Mapping[str, Any]) -> TraceEntry:
    """Return the entry for one of a snapshot's history."""
    return TraceEntry(
        entry["action"],
        entry["device_free" if entry["action"] == "oom" else "addr"],
        entry["size"],
        entry["stream"],
        tuple(entry["pool_id"]) if "pool_id" in entry else None,
        entry.get("user_metadata", ""),
        entry.get("internal_metadata", ""),
    )


def _stats_points(points: list[dict[str, Any]], op_count: int) -> list[StatsPoint]:
    last = 0
    for index, point in enumerate(points):
        _check_shape(f"stats[{index}]", point, _STATS_POINT)
        if not last <= point["at"] <= op_count:
            raise FormatError(f"stats[{index}]: taken after op {point['at']}, which is out of order")
        last = point["at"]
    return [StatsPoint(point["at"], point["stats"]) for point in points]


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
