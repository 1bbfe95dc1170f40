"""A device written in Python that forwards every call to another device's contract table.

So a test can count the calls of a compiled backend, and make them fail: `faulty(RelayDevice)(device)` is a real device
that may refuse any call.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._core.contract.table import Device
from allotment._devices.python.backend import Backend
from allotment.errors import AddressError


class RelayDevice(Backend):
    """The other device, except for captures and sharing.

    `held` is memory that it provided and has not got back, by kind.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(name=f"relay to {device.name}")
        self.target: Any = device
        self.held: Counter[str] = Counter()
        self._probe = Probe(device)

    def _relay(self, operation: str, *arguments: int) -> Any:
        try:
            return getattr(self._probe, operation)(*arguments)
        except StatusError as refused:
            raise_as_backend(refused)

    def _give(self, kind: str, size: int, result: int) -> int:
        self.held[kind] += size
        return result

    def allocate(self, size: int, stream: int) -> int:
        return self._give("segments", size, self._relay("segment_allocate", size, stream))

    def free(self, address: int, size: int) -> None:
        self._relay("segment_free", address, size)
        self.held["segments"] -= size

    def range_reserve(self, size: int, stream: int) -> int:
        return self._give("ranges", size, self._relay("range_reserve", size, stream))

    def range_release(self, address: int, size: int) -> None:
        self._relay("range_release", address, size)
        self.held["ranges"] -= size

    def chunk_create(self, size: int) -> int:
        return self._give("chunks", size, self._relay("chunk_create", size))

    def chunk_release(self, chunk: int, size: int) -> None:
        self._relay("chunk_release", chunk, size)
        self.held["chunks"] -= size

    def map(self, address: int, size: int, chunk: int) -> None:
        self._relay("map", address, size, chunk)
        self.held["mappings"] += size

    def unmap(self, address: int, size: int) -> None:
        self._relay("unmap", address, size)
        self.held["mappings"] -= size

    def set_access(self, address: int, size: int, device: int) -> None:
        self._relay("set_access", address, size, device)

    def granularity(self) -> int:
        return self._relay("granularity")

    def stream_query(self, stream: int) -> bool:
        return self._relay("stream_query", stream)

    def stream_synchronize(self, stream: int) -> None:
        self._relay("stream_synchronize", stream)

    def stream_wait(self, stream: int, event: int) -> None:
        self._relay("stream_wait", stream, event)

    def device_synchronize(self) -> None:
        self._relay("device_synchronize")

    def event_create(self) -> int:
        return self._relay("event_create")

    def event_destroy(self, event: int) -> None:
        self._relay("event_destroy", event)

    def event_record(self, event: int, stream: int) -> None:
        self._relay("event_record", event, stream)

    def event_query(self, event: int) -> bool:
        return self._relay("event_query", event)

    def event_synchronize(self, event: int) -> None:
        self._relay("event_synchronize", event)

    def memory_info(self) -> tuple[int, int]:
        return self._relay("memory_info")


class OrderedRelay(RelayDevice):
    """A relay with streams and the other device's stream-ordered pool as well."""

    def stream_create(self) -> int:
        return self._relay("stream_create")

    def stream_destroy(self, stream: int) -> None:
        self._relay("stream_destroy", stream)

    def ordered_allocate(self, size: int, stream: int) -> int:
        return self._relay("ordered_allocate", size, stream)

    def ordered_free(self, address: int, stream: int) -> None:
        self._relay("ordered_free", address, stream)

    def ordered_trim(self, keep: int) -> None:
        self._relay("ordered_trim", keep)

    def ordered_usage(self) -> tuple[int, int, int, int]:
        return self._relay("ordered_usage")

    def ordered_reset_high(self) -> None:
        self._relay("ordered_reset_high")

    def ordered_access(self, device: int) -> None:
        self._relay("ordered_access", device)


def raise_as_backend(refused: StatusError) -> NoReturn:
    """Return the error by which a device in Python reports the same."""
    words = f"{refused.operation}: {refused.text}"
    if refused.status == Status.OUT_OF_MEMORY:
        raise MemoryError(words) from refused
    if refused.status == Status.INVALID:
        raise AddressError(words, 0) from refused
    raise RuntimeError(words) from refused
