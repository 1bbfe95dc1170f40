# Made from device_calls.pyx by `make stubs`: change it there.

from typing import Any

from allotment._core.contract.table import Device

DESCRIPTOR: int

FABRIC: int

def export_segment(device: Device, base: int) -> bytes:
    """What another process needs of a plain segment: 4 bytes are a descriptor, which is the device's."""

def export_chunk(device: Device, chunk: int, by_descriptor: bool = False) -> tuple[int, bytes]:
    """(way, handle) of a chunk: over the fabric where the device has one, else a descriptor, which is the device's."""

def import_segment(device: Device, handle: bytes) -> int:
    """Where another process's segment lies in this one."""

def close_segment(device: Device, base: int) -> None:
    """Be done with another process's segment."""

def map_chunks(device: Device, pieces: list[Any]) -> int:
    """Where other processes' chunks, (way, size, handle) each, lie side by side: in a range of just their size.

    A chunk's handle is released at once: it stays as long as it is mapped. On failure nothing is left.
    """

def unmap_chunks(device: Device, base: int, sizes: list[Any]) -> None:
    """Undo `map_chunks`."""

def has_events(device: Device) -> bool:
    """Whether streams run on their own, so that there is something to wait for."""

def has_shared_events(device: Device) -> bool:
    """Whether another process can wait for the device's events."""

def is_idle(device: Device, stream: int) -> bool:
    """Whether a stream has nothing to do; False if it is destroyed, and may have."""

def is_captured(device: Device, stream: int) -> bool:
    """Whether work given to a stream is kept instead of done."""

def create_event(device: Device, shared: bool = False) -> int:
    """A new event, which another process can wait for if it is `shared`."""

def record_event(device: Device, event: int, stream: int) -> None:
    """Let an event stand for what a stream was given so far."""

def is_event_done(device: Device, event: int) -> bool:
    """Whether that work is done."""

def wait_for_event(device: Device, event: int) -> None:
    """Wait for that work."""

def destroy_event(device: Device, event: int) -> None:
    """Give an event up."""

def export_event(device: Device, event: int) -> bytes:
    """What another process needs to wait for an event."""

def let_stream_wait(device: Device, stream: int, handle: bytes) -> None:
    """Let a stream wait, on the device, for another process's event."""
