"""All exceptions that Allotment raises, as one tree.

AllotmentError
├── OutOfMemoryError        also a MemoryError: no room for this request, even after releasing the cache
├── RequestError            also a ValueError: you broke a precondition; nothing has changed
│   ├── SizeError           a size that no request can have
│   ├── AddressError        an address that is not, or no longer, the start of a block
│   ├── StreamError         a stream that is destroyed, or another device's
│   ├── SettingsError       a settings string that cannot be read: which key, which value, what is allowed
│   ├── PoolError           a private pool used in a way that its state does not allow
│   │   └── PausedError     the memory is paused; `tag` names its tag
│   ├── CheckpointError     a pool state that cannot be taken or restored
│   └── CaptureError        a graph capture begun, ended or replayed at the wrong time
├── SharingError            a block of another process that cannot be opened: `reason` says why
├── DeviceError             the device refused; `status`, `operation`, and its own text
│   └── UnsupportedError    this device or allocator cannot do that at all
├── FormatError             also a ValueError: a file whose content is not valid
└── InvariantError          a bug in Allotment: a violated invariant; do not catch it

SanitizerWarning            a UserWarning: the sanitizer has found something

Facts are attributes. The message renders them and says what to try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allotment._texts import device_neutral_out_of_memory

__all__ = [
    "AddressError",
    "AllotmentError",
    "CaptureError",
    "CheckpointError",
    "DeviceError",
    "FormatError",
    "InvariantError",
    "OutOfMemoryError",
    "OutOfMemoryFacts",
    "PausedError",
    "PoolError",
    "RequestError",
    "SanitizerWarning",
    "SettingsError",
    "SharingError",
    "SizeError",
    "StreamError",
    "UnsupportedError",
]


class AllotmentError(Exception):
    """The root: catch this to catch everything Allotment raises on purpose.

    It can be pickled and copied with its facts, so an error of a worker process arrives unchanged.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[AllotmentError], arguments: tuple[Any, ...], facts: dict[str, Any]) -> AllotmentError:
    """Rebuild an error with its message; the class's constructor would build the message again."""
    error = AllotmentError.__new__(kind, *arguments)
    error.__dict__.update(facts)
    return error


@dataclass(frozen=True, slots=True)
class OutOfMemoryFacts:
    """The state when a request failed, after the last release. Sizes are in bytes.

    `device` and `device_index` name the device, `stream` the stream that the memory was for.

    `requested` is the requested size, `rounded` the size of its block, `segment_size` the size requested from the
    device.

    `device_free` and `device_total` are the device's own figures. `limit` is the most that the allocator may reserve;
    None means no limit.

    `allocated` is in use, `reserved` is all memory of the allocator, in use or not; of that, `private_free` is unused
    in private pools, and `largest_free` is the largest unused block. `joinable` is the unused memory that could be made
    contiguous at new addresses; None if the placement does not do that.

    `too_large`: the request was refused because of its size (2**60 bytes or more); no other figure was gathered.

    `device_pool`: the request went to the device's own pool (backend:cudaMallocAsync). Allotment rounded, cached and
    released nothing; `limit` limits the memory in use, and `reserved` is the memory of the device's pool.

    `expandable`: the settings ask for expandable segments. `range_bytes` is how many addresses a segment for this
    stream reserves, None if the settings do not say; `range_class` is the stream's class.

    `processes` are the processes that hold memory on the device, as (process id, bytes); empty if the device does not
    report them.

    `limited_by` says whose limit was reached: "the allocator", "pool (0, 1)", "tag 'weights'", "tenant 'a'", or
    "reserved for tag 'weights'" if the rest is reserved for others; None if the device had no more memory. `limit`
    is then that limit.

    `pool` is the id of the pool that was to serve the request, `tag` and `tenant` are whose it was, "" for none.
    `waiting` is freed already and waits for work on other streams. `frees` is a number that changes with each free.

    `rejected`: the settings (throw_on_cudamalloc_oom) forbade to ask the device; `limit` is the share that they grant.

    `address_space`: the device had no addresses left to reserve for memory that is mapped; nobody asked whether it had
    the memory.
    """

    device: str
    device_index: int
    requested: int
    rounded: int
    segment_size: int
    device_free: int
    device_total: int
    limit: int | None
    allocated: int
    reserved: int
    private_free: int
    largest_free: int
    stream: int
    too_large: bool = False
    device_pool: bool = False
    expandable: bool = False
    range_bytes: int | None = None
    range_class: str = ""
    rejected: bool = False
    joinable: int | None = None
    limited_by: str | None = None
    pool: tuple[int, int] = (0, 0)
    tag: str = ""
    tenant: str = ""
    waiting: int = 0
    frees: int = 0
    processes: tuple[tuple[int, int], ...] = ()
    address_space: bool = False


class OutOfMemoryError(AllotmentError, MemoryError):
    """No room for a request, even after everything cached was released.

    `facts` holds the figures; the message renders them.
    """

    def __init__(self, facts: OutOfMemoryFacts) -> None:
        super().__init__(device_neutral_out_of_memory(facts))
        self.facts = facts


class RequestError(AllotmentError, ValueError):
    """A precondition was violated; nothing has changed."""


class SizeError(RequestError):
    """A size that no request can have: negative, 2**60 bytes or more, or bad text. `size` is the argument."""

    def __init__(self, message: str, size: int | str) -> None:
        super().__init__(message)
        self.size = size


class AddressError(RequestError):
    """An address that is not, or no longer, the start of a block of this allocator. `address` is the argument."""

    def __init__(self, message: str, address: int) -> None:
        super().__init__(message)
        self.address = address


class StreamError(RequestError):
    """A stream that is destroyed, or that belongs to another device."""


class SettingsError(RequestError):
    """A settings string that cannot be read.

    `key` and `value` name the place, `allowed` the valid values.
    """

    def __init__(self, message: str, *, key: str | None = None, value: str | None = None, allowed: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.value = value
        self.allowed = allowed


class PoolError(RequestError):
    """A private pool used in a way its state does not allow.

    `reason` is one of: unknown (there is no such pool), released (by its last user), exists (it cannot be created
    again), no_id (the argument is not the id of a pool), placement (its placement does not support this), routed,
    not_routed (requests are being routed to it already, or are not), paused; or other.
    """

    def __init__(self, message: str, *, reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason


class PausedError(PoolError):
    """Memory of a pool or a tag is paused, so its addresses have no memory now; or it cannot be paused.

    `tag` is the name of the tag; "" for a pool that is not a tag's.
    """

    def __init__(self, message: str, *, tag: str = "") -> None:
        super().__init__(message, reason="paused")
        self.tag = tag


class CheckpointError(RequestError):
    """A pool state that cannot be taken or restored."""


class CaptureError(RequestError):
    """A graph capture begun, ended or replayed at the wrong time."""


class SharingError(AllotmentError):
    """A block of another process that cannot be opened; nothing was mapped.

    `reason` is one of: truncated, altered, foreign, future (what is wrong with the handle); owner_gone, expired (the
    owner process has ended, or no longer keeps the block); other_user, other_device, other_boot (it belongs to another
    user, to a device that is not here, or to another boot of this or another machine).
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class DeviceError(AllotmentError):
    """The device refused an operation for a reason other than memory.

    `operation` is the operation's name in the contract, `status` its return value.
    """

    def __init__(self, message: str, *, operation: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.operation = operation
        self.status = status


class UnsupportedError(DeviceError):
    """This device, or this kind of allocator, cannot do that at all."""


class FormatError(AllotmentError, ValueError):
    """A file whose content is not valid."""


class InvariantError(AllotmentError):
    """A bug in Allotment: `rule` names the invariant that does not hold."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class SanitizerWarning(UserWarning):
    """The sanitizer has found something; the text is that of the report."""
