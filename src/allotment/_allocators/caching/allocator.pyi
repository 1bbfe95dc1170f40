# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable, Iterable

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.plan import Plan
from allotment._allocators.caching.pools import PoolId
from allotment._allocators.caching.sanitizer.reports import Report
from allotment._allocators.caching.sanitizer.watch import Sanitizer
from allotment._allocators.caching.sharing_allocator import SharingAllocator
from allotment._allocators.caching.tenants import Tenant
from allotment._devices.streams import Stream

class Allocator(SharingAllocator):
    """A caching allocator over one device.

    `device` is "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1", or a device object (a `Backend` subclass,
    `SimulatedDevice`, ...). `settings` is a settings string or record, by default what the environment variable
    ALLOTMENT_CONF says. `limit` is the most that may be reserved, in bytes or as "20GiB". With `sanitize` it looks for
    races between streams and for misuse of freed memory: see `touch` and `races`.

    Safe to use from several threads; a hit in the cache keeps the interpreter lock, anything that asks the device
    lets it go. `with allocator:` closes it at the end of the block. When it is closed, or the last reference goes, its
    memory goes back to the device but for blocks that are still in use, which a ResourceWarning tells.

    Raises SettingsError for settings that cannot be read or ask for another class (`make_allocator` chooses the
    class), RequestError for a name that is not a device's, DeviceError.
    """

    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Address of `size` bytes for work on `stream`: a `Stream` or its handle. Size 0 gives 0 and does nothing.

        `size` may also be text such as "1MiB". `stream` is by default the calling thread's current one (`with stream:`,
        `capture`), else the default one, 0. The memory is handed out in the order of that stream: work submitted to it
        earlier may still use it.

        A hit in the cache costs little more than the call; a miss asks the device, and before memory is
        out the cache is given back. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from
        several threads.
        """
    def free(self, address: Buffer | int, /) -> None:
        """Give a block back. If other streams were recorded for it, it is reused only when they are done.

        A `Buffer` is closed. Freeing 0 does nothing. The memory stays in the cache: `empty_cache` gives it to the
        device. Raises AddressError for anything that is not a live block's start, BufferError for a buffer that arrays
        or slices see. Safe to call from several threads, and from a callback inside the allocator, where it is done on
        the way out.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        Costs an event at the free. Recording the stream that it was allocated on, or address 0, does nothing. Raises
        AddressError, StreamError. Safe to call from several threads.
        """
    def malloc_at(self, size: int | str, address: int, stream: Stream | int | None = None) -> int:
        """Allocate `size` bytes at exactly this address, out of free memory of the request's pool and stream.

        Nothing new is reserved. Size 0 gives address 0. Raises AddressError if the address is not a multiple of 512, or
        no free block holds all of it; SizeError, StreamError.
        """
    def malloc_as(self, size: int, stream: int, thread: int, address: int | None = None) -> int:
        """`malloc`, or `malloc_at`, as though called by thread number `thread`: for replaying recordings."""
    def plan(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> Plan:
        """What these requests would come to if they were made now, one after the other, by the calling thread.

        A request is a size, or a size and a stream; without one it is for the current stream. They are tried on a copy
        of all that the allocator keeps, by the code that would serve them, so the result is exact, and nothing changes:
        no figure, no entry of the history, no call that changes anything on the device. Rehearsed are the cache,
        limits, pools and routes, frees whose streams are done, and everything that is tried when memory is short,
        except free-memory callbacks. Of the device it is taken that it gives what it says is free.

        Looks at every block. Raises SizeError, StreamError; UnsupportedError, with the reason, where no copy can tell:
        placement:dense, a pool with an allocator of its own, a filter that is a function, or a capture.
        """
    def would_fit(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> bool:
        """Whether these requests would all be served if they were made now. See `plan`."""
    def _empty_quarantine(self) -> bool:
        """Let go of all that the sanitizer has kept back; whether that was anything."""
    @property
    def _sanitizer(self) -> Sanitizer | None: ...
    @property
    def _lent_pools(self) -> set[PoolId]: ...
    def touch(self, address: Buffer | int, stream: Stream | int | None = None, *, write: bool = True) -> None:
        """Tell the sanitizer that work submitted to `stream` now touches memory at `address`, or reads it alone.

        `address` may lie anywhere in a block; None is the calling thread itself, or the stream whose function it runs.
        Arrays that `array` and its kin make tell of NumPy's functions by themselves. Without `sanitize` nothing
        happens.
        """
    def races(self) -> list[Report]:
        """What the sanitizer has found so far, each with the stacks of both places; empty without `sanitize`.

        Findings are also SanitizerWarnings as they are made. Freed memory is looked at when it leaves quarantine:
        `close`, and a shortage of memory, let all of it go.
        """
    def tenant(self, name: str) -> Tenant:
        """This allocator for a user with a name, so that `tenants` and snapshots tell whose blocks are whose.

        A second call with the same name gives another object for the same tenant. Raises RequestError when there are
        too many names.
        """
    def tenants(self) -> dict[str, dict[str, int]]:
        """By name, the "blocks", "allocated_bytes" and "requested_bytes" held now; "" is what has no name.

        Looks at every block. Memory that was allocated while caching was off is not counted. Safe to call from several
        threads.
        """
    def add_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call `callback()` at every miss, before the device is asked; it returns whether it freed anything.

        It runs on the thread that asked, and may use the allocator, and others: no lock is held meanwhile. What it asks
        for itself is served without callbacks. Threads that miss at the same time run it at the same time. What it
        raises is reported through `sys.unraisablehook`. Raises TypeError for what cannot be called.
        """
    def remove_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call it no more. Raises RequestError if it was not added, or is removed already."""
