"""Which allocator is responsible for a device: the interface that all of them share, and the rules of changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from allotment._allocators.current import current, install, shared_name
from allotment._devices import is_device_name
from allotment.errors import RequestError

if TYPE_CHECKING:
    from allotment._allocators.buffer import Buffer
    from allotment._allocators.caching.pools import PoolId
    from allotment._core.contract.table import Device
    from allotment._devices.streams import Stream

__all__ = ["DeviceAllocator", "change_current_allocator", "get_device_allocator", "register_device_allocator"]


@runtime_checkable
class DeviceAllocator(Protocol):
    """What can be asked of any device's allocator: of `Allocator`, of `PluggableAllocator`, of one of your own."""

    @property
    def device(self) -> Device:
        """The device whose memory this is."""

    @property
    def initialized(self) -> bool:
        """Whether it may be in use already, so that no other can take its place."""

    def malloc(self, size: int, stream: Stream | int = 0) -> int:
        """Address of `size` bytes for work on `stream`. Raises OutOfMemoryError."""

    def free(self, address: Any, /) -> None:
        """Give a block back, by its address. Raises AddressError for what is not a live block's start."""

    def empty(self, size: int, stream: Stream | int = 0) -> Buffer:
        """A buffer of `size` bytes that frees itself."""

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work."""

    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Give unused cached memory back to the device."""

    def stats(self) -> dict[str, int]:
        """All counters, flattened and sorted by key."""

    def nested_stats(self) -> dict[str, Any]:
        """All counters, by metric, size class and kind."""

    def reset_accumulated_stats(self) -> None:
        """Let the sums of all allocations and frees start anew from 0."""

    def reset_peak_stats(self) -> None:
        """Let the peaks start anew from what is in use now."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""


def get_device_allocator(device: str) -> DeviceAllocator:
    """The allocator that is responsible for a device ("cuda" is "cuda:0"): its current one.

    Raises RequestError for "cpu", whose memory no device allocator manages, and for an unknown device.
    """
    _refuse_cpu("getDeviceAllocator", device)
    return current(device)


def register_device_allocator(device: str, allocator: DeviceAllocator) -> None:
    """Make an allocator responsible for a kind of device that Allotment does not know, under a name of yours.

    Raises TypeError if it is not a DeviceAllocator, RequestError if the name is that of a device which Allotment knows,
    or has an allocator that is initialized.
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
    """Let `allocator` be what `current(device)` gives, instead of the one that would be made at its first use.

    Possible only as long as the present one is not initialized. A caching allocator is from its first use, a pluggable
    one from the start, so that it is never replaced. Raises TypeError if it is not a DeviceAllocator, RequestError
    otherwise.
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
    if not isinstance(allocator, DeviceAllocator):
        missing = [name for name in _MEMBERS if not hasattr(allocator, name)]
        raise TypeError(f"{type(allocator).__name__} is not a DeviceAllocator: it lacks {', '.join(missing)}")
    return allocator


_MEMBERS = sorted(name for name in vars(DeviceAllocator) if not name.startswith("_"))
