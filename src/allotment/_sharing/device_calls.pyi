# Made from device_calls.pyx by `make stubs`: change it there.

from typing import Any

from allotment._core.contract.table import Device

DESCRIPTOR: int

FABRIC: int

def export_segment(device: Device, base: int) -> bytes:
    """Return what another process needs to open a plain segment: 4 bytes are a descriptor, which the device owns."""

def export_chunk(device: Device, chunk: int, by_descriptor: bool = False) -> tuple[int, bytes]:
    """Return (way, handle) of a chunk: over the fabric if possible, else a descriptor, which the device owns."""

def import_segment(device: Device, handle: bytes) -> int:
    """Map another process's segment; return its address here."""

def close_segment(device: Device, base: int) -> None:
    """Close another process's segment."""

def map_chunks(device: Device, pieces: list[Any], peers: list[Any]) -> int:
    """Map other processes' chunks, (way, size, handle) each, side by side in a range of just their size; return its
    address.

    The device itself gets access, and the devices of the indices `peers`. A chunk's handle is released at once: the
    chunk lives as long as it is mapped. On failure nothing is left.
    """

def open_to_peer(device: Device, base: int, size: int, peer: int) -> None:
    """Give another device access to what `map_chunks` mapped."""

def unmap_chunks(device: Device, base: int, sizes: list[Any]) -> None:
    """Undo `map_chunks`."""

def has_events(device: Device) -> bool:
    """Whether streams run asynchronously, so that there is something to wait for."""

def has_shared_events(device: Device) -> bool:
    """Whether another process can wait for the device's events."""

def is_idle(device: Device, stream: int) -> bool:
    """Whether a stream has no work. False for a destroyed stream, which may still have some."""

def is_captured(device: Device, stream: int) -> bool:
    """Whether work given to a stream is recorded instead of run."""

def create_event(device: Device, shared: bool = False) -> int:
    """Create an event, which another process can wait for if it is `shared`."""

def record_event(device: Device, event: int, stream: int) -> None:
    """Record the stream's work so far in an event."""

def is_event_done(device: Device, event: int) -> bool:
    """Whether that work is done."""

def wait_for_event(device: Device, event: int) -> None:
    """Wait for that work."""

def destroy_event(device: Device, event: int) -> None:
    """Destroy an event."""

def export_event(device: Device, event: int) -> bytes:
    """Return what another process needs to wait for an event."""

def let_stream_wait_here(device: Device, stream: int, event: int) -> None:
    """Make a stream wait, on the device, for an event of this process."""

def let_stream_wait(device: Device, stream: int, handle: bytes) -> None:
    """Make a stream wait, on the device, for another process's event."""
