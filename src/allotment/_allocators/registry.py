"""Which allocator is responsible for a device: the interface that all allocators share, and how to replace one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from allotment._allocators.current import current, install, shared_name
from allotment._devices import is_device_name
from allotment.errors import RequestError

if TYPE_CHECKING:
    from allotment._allocators.buffer import Buffer
    from allotment._allocators.caching.pool import PoolId
    from allotment._core.contract.table import Device
    from allotment._devices.streams import Stream

__all__ = ["DeviceAllocator", "change_current_allocator", "get_device_allocator", "register_device_allocator"]


@runtime_checkable
class DeviceAllocator(Protocol):
    """The operations of every device's allocator: `Allocator`, `PluggableAllocator`, or your own class.

    Your class may derive from this one or only have all of its members. Every member is abstract: Python refuses to
    create an object of a derived class that lacks one.
    """

    @property
    @abstractmethod
    def device(self) -> Device:
        """Device that owns the memory."""

    @abstractmethod
    def malloc(self, size: int, stream: Stream | int | None = None) -> int:
        """Return the address of `size` bytes for work on `stream`, by default the current one.

        Raises OutOfMemoryError.
        """

    @abstractmethod
    def free(self, address: Any, /) -> None:
        """Free a block by its address. Raises AddressError for an address that is not the start of a live block."""

    @abstractmethod
    def empty(self, size: int, stream: Stream | int | None = None) -> Buffer:
        """Return a buffer of `size` bytes that frees itself."""

    @abstractmethod
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work."""

    @abstractmethod
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Return unused cached memory to the device; memory of a pool in use may stay."""

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Return all counters, flattened and sorted by key."""

    @abstractmethod
    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values."""

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of the device."""


def get_device_allocator(device: str) -> DeviceAllocator:
    """Return the allocator responsible for a device ("cuda" is "cuda:0"): its current one.

    Raises RequestError for "cpu", whose memory no device allocator manages, and for an unknown device.
    """
    _refuse_cpu("getDeviceAllocator", device)
    return current(device)


def register_device_allocator(device: str, allocator: DeviceAllocator) -> None:
    """Make an allocator responsible for a kind of device that Allotment does not know, under a name of your choice.

    Raises TypeError if it is not a DeviceAllocator; RequestError if Allotment knows a device with that name, or the
    name's allocator is initialized.
    """
    _refuse_cpu("register_device_allocator", device)
    _checked(allocator)
    if not isinstance(device, str) or not device:
        raise TypeError(f"a kind of device is registered under a name, a text, not {device!r}")
    if is_device_name(device):
        raise RequestError(
            f"device {device!r} is one of Allotment's own; use change_current_allocator to replace its allocator"
        )
    install(device, allocator)


def change_current_allocator(device: str, allocator: DeviceAllocator) -> None:
    """Make `current(device)` return `allocator`, instead of one that is made on first use.

    Possible only while the present allocator is not initialized. Allotment's own are initialized from the start; one of
    yours that can still be replaced has an attribute `initialized` that is False. Raises TypeError if it is not a
    DeviceAllocator, else RequestError.
    """
    _refuse_cpu("change_current_allocator", device)
    name = shared_name(device)
    own_name = _checked(allocator).device.name
    if own_name != name and is_device_name(own_name) and is_device_name(name):
        raise RequestError(f"an allocator on {own_name} cannot serve {name}; make one on {name}")
    install(name, allocator)


def _refuse_cpu(operation: str, device: str) -> None:
    if device == "cpu":
        raise RequestError(
            f'{operation} is not supported for CPU device type. Use "host", which is host memory as a device, or'
            " allotment.cpu"
        )


def _checked(allocator: DeviceAllocator) -> DeviceAllocator:
    missing = [name for name in _MEMBERS if _lacks(allocator, name)]
    if missing:
        raise TypeError(f"{type(allocator).__name__} is not a DeviceAllocator: it lacks {', '.join(missing)}")
    return allocator


def _lacks(allocator: DeviceAllocator, name: str) -> bool:
    """Whether a member is missing, None, or still the abstract one.

    Python checks for abstract members only in `object.__new__`, which is never called for a class with a compiled base.
    """
    of_class = getattr(type(allocator), name, None)
    return getattr(of_class, "__isabstractmethod__", False) or getattr(allocator, name, None) is None


_MEMBERS = sorted(name for name in vars(DeviceAllocator) if not name.startswith("_"))
