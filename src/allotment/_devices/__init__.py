"""Opens a device by name, and loads its backend only then."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from allotment._settings import parse_size, shortest_size
from allotment.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

__all__ = ["device_name", "is_device_name", "open_device"]

_SIMULATED = re.compile(r"sim:(?P<capacity>[^#]+)(#(?P<index>\d+))?")
_CUDA = re.compile(r"cuda(:(?P<index>\d+))?")


def device_name(name: str) -> str:
    """Return the canonical one of a device's names. Raises RequestError for an unknown name."""
    _expect_text(name)
    if match := _SIMULATED.fullmatch(name):
        index = int(match["index"] or 0)
        return f"sim:{shortest_size(parse_size(match['capacity']))}" + (f"#{index}" if index else "")
    if match := _CUDA.fullmatch(name):
        return f"cuda:{int(match['index'] or 0)}"
    if name != "host":
        raise _no_device(name)
    return name


def is_device_name(name: str) -> bool:
    """Whether a name stands for a device."""
    return name == "host" or bool(_SIMULATED.fullmatch(name) or _CUDA.fullmatch(name))


def open_device(name: str, *, shareable: bool = False) -> Device:
    """Open the device of a name: "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1".

    With `shareable`, other processes can open host memory; memory of other devices is always shareable.
    """
    _expect_text(name)
    if match := _SIMULATED.fullmatch(name):
        from allotment._devices.simulated.device import SimulatedDevice

        return SimulatedDevice(parse_size(match["capacity"]), int(match["index"] or 0))
    if name == "host" or (match := _CUDA.fullmatch(name)):
        return _open_native(name, int(match["index"] or 0) if match else 0, shareable)
    raise _no_device(name)


def _expect_text(name: str) -> None:
    if isinstance(name, type):
        raise TypeError(f"{name.__name__} is a class; pass an object of it as the device: {name.__name__}()")
    if not isinstance(name, str):
        raise TypeError(f'a device must be a name such as "cuda:0" or a device object, not {type(name).__name__}')


def _no_device(name: str) -> RequestError:
    return RequestError(f'unknown device {name!r}; use "host", "cuda", "cuda:1", "sim:80GiB" or a device object')


def _open_native(name: str, index: int, shareable: bool) -> Device:
    try:
        if name == "host":
            from allotment._devices.host.device import HostDevice

            return HostDevice(shareable=shareable)
        from allotment._devices.cuda.device import CudaDevice

        return CudaDevice(index)
    except ImportError as error:
        raise UnsupportedError(
            f"this build of allotment does not support device {name!r}, which needs Linux: {error}"
        ) from error
