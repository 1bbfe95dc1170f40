"""The families of devices, one row each: how devices are named, opened, and recognised in another process.

A new family is a row here and a folder beside this file. All other code asks the row.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allotment._settings import parse_size, shortest_size

if TYPE_CHECKING:
    from allotment._core.contract.table import Device


@dataclass(frozen=True)
class Family:
    """One kind of device."""

    name: str
    """What `Device.family` says."""
    examples: tuple[str, ...]
    """Names of such devices, for messages."""
    pattern: re.Pattern[str]
    """The form of the names of such devices."""
    canonical: Callable[[re.Match[str]], str]
    """Returns the canonical form of a device's names, which other code compares."""
    open: Callable[[re.Match[str], bool], Device]
    """Opens a device; the flag says whether other processes must be able to open its memory."""
    candidates: Callable[[str], Iterator[str]]
    """Names that a device may have in this process, if it has this name in another one."""
    identity: Callable[[Any], str | None]
    """What two processes compare to recognise the same device; None: only one exists."""
    is_physical: bool
    """Whether a device is the same memory in every process."""


def _index(match: re.Match[str]) -> int:
    return int(match["index"] or 0)


def _open_host(match: re.Match[str], shareable: bool) -> Device:
    from allotment._devices.host.device import HostDevice

    return HostDevice(shareable=shareable)


def _open_cuda(match: re.Match[str], shareable: bool) -> Device:
    from allotment._devices.cuda.device import CudaDevice

    return CudaDevice(_index(match))


def _open_simulated(match: re.Match[str], shareable: bool) -> Device:
    from allotment._devices.simulated.device import SimulatedDevice

    return SimulatedDevice(parse_size(match["capacity"]), _index(match))


def _simulated_name(match: re.Match[str]) -> str:
    size = shortest_size(parse_size(match["capacity"]))
    return f"sim:{size}#{_index(match)}" if _index(match) else f"sim:{size}"


FAMILIES = (
    Family(
        name="host",
        examples=("host",),
        pattern=re.compile("host"),
        canonical=lambda match: "host",
        open=_open_host,
        candidates=lambda name: iter(["host"]),
        identity=lambda device: None,
        is_physical=True,
    ),
    Family(
        name="cuda",
        examples=("cuda", "cuda:1"),
        pattern=re.compile(r"cuda(:(?P<index>\d+))?"),
        canonical=lambda match: f"cuda:{_index(match)}",
        open=_open_cuda,
        candidates=lambda name: (f"cuda:{index}" for index in itertools.count()),  # numbers differ between processes
        identity=lambda device: str(getattr(device, "uuid", None)),
        is_physical=True,
    ),
    Family(
        name="simulated",
        examples=("sim:80GiB",),
        pattern=re.compile(r"sim:(?P<capacity>[^#]+)(#(?P<index>\d+))?"),
        canonical=_simulated_name,
        open=_open_simulated,
        candidates=lambda name: iter([name]),
        identity=lambda device: device.name,
        is_physical=False,
    ),
)
"""In the order in which handles for other processes number them: append a new one at the end."""

BY_NAME = {family.name: family for family in FAMILIES}
