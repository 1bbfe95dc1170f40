"""The reports of all processes at one moment: by process and device, with rates since the previous moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from allotment._monitor.asking import Silent
from allotment._monitor.figures import Figures, Report


@dataclass
class DeviceShare:
    """A process's share of one device, through all of its allocators there."""

    device: str
    identity: str
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    active_bytes: int = 0
    waste_bytes: int = 0
    limit_bytes: int | None = None
    ooms: int = 0
    retries: int = 0
    requests: int = 0
    requests_per_s: float | None = None
    tags: dict[str, int] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    process: dict[str, int] = field(default_factory=dict)

    def add(self, each: Figures, is_first: bool) -> None:
        self.reserved_bytes += each.reserved_bytes
        self.allocated_bytes += each.allocated_bytes
        self.active_bytes += each.active_bytes
        self.waste_bytes += each.waste_bytes
        self.ooms += each.ooms
        self.retries += each.retries
        self.requests += each.requests
        # Two allocators have a common limit only if both have one.
        if is_first:
            self.limit_bytes = each.limit_bytes
        elif self.limit_bytes is None or each.limit_bytes is None:
            self.limit_bytes = None
        else:
            self.limit_bytes += each.limit_bytes
        for mine, theirs in ((self.tags, each.tags), (self.paused, each.paused), (self.tenants, each.tenants)):
            for name, size in theirs.items():
                mine[name] = mine.get(name, 0) + size
        self.process = each.process or self.process  # not a sum: each allocator reports the same

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "reserved_bytes": self.reserved_bytes,
            "allocated_bytes": self.allocated_bytes,
            "active_bytes": self.active_bytes,
            "waste_bytes": self.waste_bytes,
            "limit_bytes": self.limit_bytes,
            "ooms": self.ooms,
            "retries": self.retries,
            "requests_per_s": None if self.requests_per_s is None else round(self.requests_per_s, 1),
            "tags": self.tags,
            "paused": self.paused,
            "tenants": self.tenants,
            "process": self.process,
        }


@dataclass
class Process:
    """A process and its shares of devices; one that does not answer has none."""

    pid: int
    command: str
    answers: bool
    devices: list[DeviceShare]

    def as_json(self) -> dict[str, Any]:
        devices = [each.as_json() for each in self.devices]
        return {"pid": self.pid, "command": self.command, "answers": self.answers, "devices": devices}


@dataclass
class WholeDevice:
    """A device of this machine. `others_bytes` is memory in use there by processes that do not announce themselves."""

    device: str
    total_bytes: int
    free_bytes: int
    reserved_bytes: int

    @property
    def others_bytes(self) -> int:
        # Untouched host memory is reserved by the allocator but still free on the machine.
        return max(self.total_bytes - self.free_bytes - self.reserved_bytes, 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "total_bytes": self.total_bytes,
            "free_bytes": self.free_bytes,
            "reserved_bytes": self.reserved_bytes,
            "others_bytes": self.others_bytes,
        }


@dataclass
class Overview:
    """The figures of all processes at one moment."""

    processes: list[Process]
    devices: list[WholeDevice]

    def process(self, pid: int) -> Process | None:
        return next((each for each in self.processes if each.pid == pid), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "processes": [each.as_json() for each in self.processes],
            "devices": [each.as_json() for each in self.devices],
        }


def overview(now: Sequence[Report | Silent], before: Sequence[Report | Silent] = ()) -> Overview:
    """Return the current overview. Rates are since `before`, and None for what did not exist then."""
    earlier = {each.pid: each for each in before if isinstance(each, Report)}
    processes = []
    for each in now:
        if isinstance(each, Silent):
            processes.append(Process(each.pid, "", False, []))
            continue
        shares = _shares(each)
        known = earlier.get(each.pid)
        if known is not None and each.seconds > known.seconds:
            _add_rates(shares, _shares(known), each.seconds - known.seconds)
        processes.append(Process(each.pid, each.command, True, list(shares.values())))
    return Overview(processes, _whole_devices([each for each in now if isinstance(each, Report)]))


def _shares(report: Report) -> dict[tuple[str, str], DeviceShare]:
    found: dict[tuple[str, str], DeviceShare] = {}
    for each in report.allocators:
        key = (each.device, each.identity)
        is_first = key not in found
        found.setdefault(key, DeviceShare(*key)).add(each, is_first)
    return dict(sorted(found.items()))


def _add_rates(
    now: dict[tuple[str, str], DeviceShare], before: dict[tuple[str, str], DeviceShare], seconds: float
) -> None:
    for key, share in now.items():
        if key in before:  # fewer than before: the counters were reset, or an allocator is gone
            share.requests_per_s = max(share.requests - before[key].requests, 0) / seconds


def _whole_devices(reports: Sequence[Report]) -> list[WholeDevice]:
    """Devices by identity, since numbers differ between processes; without memory that only one process can have."""
    found: dict[str, WholeDevice] = {}
    for each in (figures for report in reports for figures in report.allocators):
        if each.identity and each.device_total_bytes is not None and each.device_free_bytes is not None:
            whole = found.setdefault(each.identity, WholeDevice(each.device, 0, 0, 0))
            whole.total_bytes, whole.free_bytes = each.device_total_bytes, each.device_free_bytes
            whole.reserved_bytes += each.reserved_bytes
    return sorted(found.values(), key=lambda whole: whole.device)
