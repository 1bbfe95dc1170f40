"""The figures of an allocator at one moment: read from it, sent to another process, and checked there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from allotment._devices.families import FAMILIES
from allotment._process.ledger import process_parts
from allotment._sharing.identity import identity_of
from allotment._texts import printable
from allotment.errors import DeviceError, FormatError, PoolError, UnsupportedError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

NAMES_MOST = 100_000
TEXT_MOST = 4_000
COUNT_MOST = 2**63
PHYSICAL = {family.name for family in FAMILIES if family.is_physical}


class Watched(Protocol):
    """What this module needs from an allocator."""

    @property
    def device(self) -> Device: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def limits(self) -> Any: ...
    def stats(self) -> dict[str, int]: ...
    def memory_info(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Figures:
    """The figures of one allocator. Sizes are in bytes.

    `requests`, `ooms` and `retries` count from the start. Dictionaries are by the name of a tag or a tenant; limits are
    those that are set. `process` is what the whole process holds on the device, if a preloaded library counts it.
    """

    device: str
    identity: str  # equal for the same memory in two processes; "" for memory that only its process has
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    limit_bytes: int | None
    device_free_bytes: int | None
    device_total_bytes: int | None
    ooms: int
    retries: int
    requests: int
    tags: dict[str, int] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    tag_limits: dict[str, int] = field(default_factory=dict)
    tenant_limits: dict[str, int] = field(default_factory=dict)
    process: dict[str, int] = field(default_factory=dict)

    @property
    def waste_bytes(self) -> int:
        """Reserved memory beyond the requested bytes. Paused memory is requested, but not reserved."""
        return max(self.reserved_bytes + sum(self.paused.values()) - self.requested_bytes, 0)


def figures_of(allocator: Watched) -> Figures:
    """Read an allocator. Briefly holds its lock; visits every block to tell tenants apart."""
    stats = allocator.stats()
    tags: dict[str, dict[str, int]] = allocator.sleep.tags() if hasattr(allocator, "sleep") else {}
    tenants: dict[str, dict[str, int]] = allocator.tenants() if hasattr(allocator, "tenants") else {}
    free, total = _memory_of(allocator)
    device = allocator.device
    return Figures(
        device=device.name,
        identity=identity_of(device).hex() if device.family in PHYSICAL else "",
        reserved_bytes=stats["reserved_bytes.all.current"],
        allocated_bytes=stats["allocated_bytes.all.current"],
        active_bytes=stats["active_bytes.all.current"],
        requested_bytes=stats["requested_bytes.all.current"],
        limit_bytes=allocator.limit,
        device_free_bytes=free,
        device_total_bytes=total,
        ooms=stats["num_ooms"],
        retries=stats["num_alloc_retries"],
        requests=stats["allocation.all.allocated"],
        tags={name: each["reserved_bytes"] for name, each in tags.items()},
        paused={name: each["paused"] for name, each in tags.items() if each["paused"]},
        tenants={name: each["allocated_bytes"] for name, each in tenants.items()},
        tag_limits=_limits(allocator, "_tag_limit", tags),
        tenant_limits=_limits(allocator, "_tenant_limit", tenants),
        process=process_parts(allocator) or {},
    )


def _limits(allocator: Watched, of: str, names: Iterable[str]) -> dict[str, int]:
    found = {}
    for name in filter(None, names):
        with suppress(PoolError):  # a tag whose memory was released meanwhile
            found[name] = getattr(allocator.limits, of)(name)
    return {name: limit for name, limit in found.items() if limit is not None}


def _memory_of(allocator: Watched) -> tuple[int | None, int | None]:
    try:
        return allocator.memory_info()
    except (UnsupportedError, DeviceError):
        return None, None


@dataclass(frozen=True)
class Report:
    """A process's report on its allocators; `seconds` is its clock, for rates."""

    pid: int
    command: str
    seconds: float
    allocators: list[Figures]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report_of(pid: int, command: str, allocators: list[Watched]) -> Report:
    """Return the figures of these allocators now."""
    return Report(pid, command, time.monotonic(), [figures_of(each) for each in allocators])


# Validation: another process may send anything.


def read_report(data: Any) -> Report:
    """Parse a report that another process sent. Raises FormatError for anything else."""
    found = _mapping(data, Report)
    listed = found["allocators"]
    if not isinstance(listed, list) or len(listed) > NAMES_MOST:
        raise FormatError("a process sent no list of allocators")
    seconds = found["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < COUNT_MOST:
        raise FormatError("a process sent an invalid time")
    return Report(_count(found["pid"]), _text(found["command"]), float(seconds), [_figures(each) for each in listed])


def _figures(data: Any) -> Figures:
    found = _mapping(data, Figures)
    values: dict[str, Any] = {}
    for each in fields(Figures):
        value = found[each.name]
        if each.name in ("device", "identity"):
            values[each.name] = _text(value)
        elif each.default_factory is not MISSING:
            values[each.name] = _by_name(value)
        elif value is None and each.name in ("limit_bytes", "device_free_bytes", "device_total_bytes"):
            values[each.name] = None
        else:
            values[each.name] = _count(value)
    return Figures(**values)


def _mapping(data: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or not data.keys() >= {each.name for each in fields(kind)}:
        raise FormatError(f"a process sent no {kind.__name__}; does it have another version of Allotment?")
    return data


def _by_name(data: Any) -> dict[str, int]:
    if not isinstance(data, dict) or len(data) > NAMES_MOST:
        raise FormatError("a process sent no figures by name")
    return {_text(name): _count(value) for name, value in data.items()}


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < COUNT_MOST:
        raise FormatError("a process sent an invalid figure")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FormatError("a process sent a name that is not text")
    return printable(value[:TEXT_MOST])


@dataclass(frozen=True)
class Line:
    """Blocks in use that one line of code allocated; `where` is "" for those without a stack."""

    device: str
    where: str
    bytes: int
    blocks: int


def read_lines(data: Any) -> list[Line]:
    """Parse lines that another process sent. Raises FormatError for anything else."""
    if not isinstance(data, list) or len(data) > NAMES_MOST:
        raise FormatError("a process sent no lines")
    found = (_mapping(each, Line) for each in data)
    return [
        Line(_text(each["device"]), _text(each["where"]), _count(each["bytes"]), _count(each["blocks"]))
        for each in found
    ]
