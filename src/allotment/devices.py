"""The classes of devices, for programs that create a device object themselves; and `Probe`, for testing one.

`HostDevice` and `CudaDevice` exist on Linux; on other systems, accessing them raises ImportError.
"""

from typing import TYPE_CHECKING, Any

from allotment._core.contract.probe import Capability, Probe, Status, StatusError
from allotment._core.contract.table import Device
from allotment._devices.python.backend import Backend
from allotment._devices.simulated.device import SimulatedDevice

if TYPE_CHECKING:
    from allotment._devices.cuda.device import CudaDevice
    from allotment._devices.host.device import HostDevice

__all__ = [
    "Backend",
    "Capability",
    "CudaDevice",
    "Device",
    "HostDevice",
    "Probe",
    "SimulatedDevice",
    "Status",
    "StatusError",
]


def __getattr__(name: str) -> Any:
    if name == "HostDevice":
        from allotment._devices.host.device import HostDevice

        return HostDevice
    if name == "CudaDevice":
        from allotment._devices.cuda.device import CudaDevice

        return CudaDevice
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
