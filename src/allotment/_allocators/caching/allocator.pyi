# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable, Collection, Iterable, Mapping
from os import PathLike
from typing import Any

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.history import History
from allotment._allocators.caching.inspection import Inspection
from allotment._allocators.caching.limits import Limits
from allotment._allocators.caching.plan import Plan
from allotment._allocators.caching.pool import Pool, PoolId
from allotment._allocators.caching.pools import Pools
from allotment._allocators.caching.sanitizer.watch import Sanitizer
from allotment._allocators.caching.sharing import Sharing
from allotment._allocators.caching.sleep import Sleep
from allotment._allocators.caching.tenants import Tenant
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings
from allotment._sharing.handle import SharedHandle
from allotment.errors import OutOfMemoryFacts

class Allocator(AllocatorBase):
    """A caching allocator over one device.

    `device` is "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1", or a device object (a `Backend` subclass,
    `SimulatedDevice`, ...). `settings` is a settings string or record; the default is the environment variable
    ALLOTMENT_CONF. `limit` is the most that the allocator may reserve, in bytes or as "20GiB". With `sanitize` it
    detects races between streams and misuse of freed memory: see `inspection`.

    Safe to use from several threads. A cache hit keeps the interpreter lock; an operation that calls the device
    releases it. `with allocator:` closes the allocator at the end of the block. When it is closed, or its last
    reference is dropped, its memory returns to the device. Blocks in use stay, and a ResourceWarning reports them.

    Raises SettingsError for invalid settings or settings that ask for another class (`make_allocator` chooses the
    class), RequestError for an unknown device name, and DeviceError.
    """

    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
        sanitize: bool = False,
    ) -> None: ...
    @property
    def history(self) -> History:
        """History of its memory: recording, trackers, snapshots, leaks."""
    @property
    def pools(self) -> Pools:
        """Private pools by id, and how requests are routed to them."""
    @property
    def limits(self) -> Limits:
        """Limits of pools, tags and tenants, and the functions called when memory runs out."""
    @property
    def sleep(self) -> Sleep:
        """Paused tags and pools: their memory is returned to the device while their addresses stay."""
    @property
    def sharing(self) -> Sharing:
        """Blocks that other processes and devices use."""
    @property
    def inspection(self) -> Inspection:
        """Figures, checks and findings, for tools and tests."""
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Return the address of `size` bytes for work on `stream`, a `Stream` or its handle. Size 0 returns 0.

        `size` may also be text such as "1MiB". `stream` is by default the calling thread's current stream (`with
        stream:`, `capture`), else the default stream, 0. Memory is allocated in the order of that stream: work
        submitted to the stream earlier may still use it.

        A cache hit costs little more than the call. A miss calls the device; before it fails, the allocator releases
        its cache. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from several threads.
        """
    def free(self, address: Buffer | int, /) -> None:
        """Free a block. If other streams are recorded for it, it is reused only when they are done.

        A `Buffer` is closed. Freeing 0 does nothing. The memory stays in the cache; `empty_cache` returns it to the
        device. Raises AddressError for an address that is not the start of a live block, BufferError for a buffer that
        arrays or slices use. Safe to call from several threads. From a callback inside the allocator, the free is done
        when the thread leaves the allocator.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        The free then costs an event. Recording the stream of the allocation, or address 0, does nothing. Raises
        AddressError, StreamError. Safe to call from several threads.
        """
    def _empty_quarantine(self) -> bool:
        """Free everything that the sanitizer has kept back; return whether there was anything."""
    @property
    def _sanitizer(self) -> Sanitizer | None: ...
    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values. Safe to call from several threads."""
    def tenants(self) -> dict[str, dict[str, int]]:
        """Return, by tenant name, the "blocks", "allocated_bytes" and "requested_bytes" in use; "" has the rest.

        Visits every block. Does not count memory that was allocated while caching was off. Safe to call from several
        threads.
        """
    def tenant(self, name: str) -> Tenant:
        """Return this allocator for a named user, so that `tenants` and snapshots show whose the blocks are.

        A second call with the same name returns another object for the same tenant. Raises RequestError when there are
        too many names.
        """
    def pool(
        self, *, use_on_oom: bool = False, no_split: bool = False, allocator: Any = None, placement: str | None = None
    ) -> Pool:
        """Return a private pool: inside `with pool:`, only its memory serves this thread's requests.

        `use_on_oom` lends its free memory to other requests when memory is out. `no_split` serves requests with whole
        segments. `allocator` provides its segments: an object with allocate(size, stream) and free(address, size,
        stream), or a PluggableAllocator. `placement` names a way to divide its memory that differs from the
        allocator's. Raises SettingsError for an unknown placement.
        """
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Return unused cached memory to the device, from all pools or from one.

        Blocks in use stay. So does all memory of a private pool that is in use (`pool_use_count`), as in PyTorch;
        `Pool.close` releases that. Waits for events of blocks that other streams used, and calls the device for each
        segment. Raises PoolError for a pool that never existed, and DeviceError. Safe to call from several threads.
        """
    def trim_to(self, size: int | str) -> int:
        """Release cached memory until at most `size` bytes are reserved; return the number of bytes released.

        `size` is a number of bytes or a text such as "2GiB". Memory in use stays, so more may remain. Waits and raises
        as `empty_cache` does. Safe to call from several threads.
        """
    def plan(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> Plan:
        """Return what would happen if the calling thread made these requests now, one after the other.

        A request is a size, or a size and a stream; without a stream it is for the current one. The requests run on a
        copy of all that the allocator knows, through the code that would serve them. So the result is exact, and
        nothing changes: no figure, no entry of the history, no state of the device. The rehearsal covers the cache,
        limits, pools and routes, frees whose streams are done, and everything that the allocator tries when memory is
        short, except free-memory callbacks. It assumes that the device provides all the memory that it reports as free.

        Visits every block. Raises SizeError, StreamError; UnsupportedError, with the reason, where a copy cannot
        reproduce it: placement:dense, a pool with its own allocator, a filter that is a function, or a capture.
        """
    def would_fit(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> bool:
        """Return whether all of these requests would be served if they were made now. See `plan`."""
    def set_limit(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """Set how much memory a tag, a pool, a tenant, or (None) the whole allocator may have.

        Each limit is a number of bytes or a text such as "2GiB". None, and an omitted argument, remove that limit. At
        least one argument is required: `hard=None` removes all.

        `hard`: requests that would exceed it raise OutOfMemoryError, whose `facts.limited_by` says whose limit it was.
        For a tag or pool it counts reserved memory, for a tenant memory in use. `soft`: before the reserved memory
        exceeds it, the allocator releases cached memory, which waits for other streams; it refuses nothing. `reserved`:
        other users leave this much available, within the allocator's limit or the device's memory.

        Memory already held stays. Raises RequestError if no limit is given, and for a soft limit of a tenant or memory
        reserved for a tenant, which shares its cache with others; PoolError for a pool that is gone; TypeError for any
        other object. Safe to call from several threads.
        """
    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """Call `step(facts)` before a request fails for lack of memory; its result says whether to retry the request.

        Such handlers run in the order in which they were added, after everything that the allocator does itself (the
        cache is empty then), on the requesting thread and without any lock. A handler may free, pause tags, wait, and
        use the allocator; its own requests do not invoke handlers. One request calls each handler at most `tries`
        times. After that, or when a handler returns False or raises, the next handler runs; after the last one the
        request raises OutOfMemoryError. `sys.unraisablehook` gets the exceptions of handlers. `allotment.relief` has
        handlers that wait, spill and trim.

        Returns a function that removes the handler. Raises TypeError if `step` is not callable, RequestError for less
        than one try. Safe to call from several threads.
        """
    def pause(
        self,
        tag: str | Pool | Tenant,
        *,
        keep: str = "host",
        keep_host: bool = False,
        folder: str | PathLike[str] | None = None,
        host_limit: int | str | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
    ) -> int:
        """Return the physical memory of a tag to the device and keep every address; return the number of bytes
        released.

        `keep` says where the contents of blocks in use are meanwhile: "host" copies them to host memory, "file" to a
        file without a name in `folder` (by default the system's folder for temporary files), and `resume` copies them
        back; with "nothing" they are lost. With `keep_host`, the host memory stays for the next pause of the same
        memory, until a pause without it. `host_limit` is the most host memory that the contents may take, in bytes or
        as "20GiB". `progress(done, total)` is called with bytes on the way; with `progress=True`, a terminal shows a
        bar.

        `tag` is the name of a tag, a Pool whose memory is virtual (expandable segments), or a Tenant all of whose
        blocks are in such pools and tags, without blocks of others. Until it is resumed, requests for it raise
        PausedError, its blocks may be freed, and touching them is an error: on the host the process ends, with a
        message that names the tag. Graphs that use the blocks stay as they are.

        Waits for all work of the device. If it fails, the memory is unchanged, or asleep already; then pausing it again
        pauses the rest. Pausing it a second time does nothing. Raises PoolError if nothing was ever allocated in this
        tag; PausedError if another process has a block of it open, a tenant shares its pages with others, a graph is
        being captured, it is being paused or resumed, or it is paused with another `keep`; RequestError if the contents
        need more than `host_limit`, or `folder` is missing, on memory, too full or not writable; UnsupportedError on
        devices without virtual memory; DeviceError; OSError if writing the file fails; MemoryError if the host has no
        room for the contents; and what `progress` raises. Safe to call from several threads.
        """
    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | bool | None = None) -> None:
        """Map memory under the paused addresses again, and restore the contents.

        `progress(done, total)` is called with bytes on the way; with `progress=True`, a terminal shows a bar. If
        resuming fails, because other code took the memory meanwhile or a call fails, the memory is asleep as before and
        nothing is lost: try again. If memory is short, the allocator first releases its cache and calls the handlers of
        `on_out_of_memory`. Does nothing for memory that is not paused. Raises OutOfMemoryError, DeviceError, PoolError,
        FormatError if the file with the contents was changed, OSError if it cannot be read, and what `progress` raises.
        Safe to call from several threads.
        """
    def paused(self) -> set[str | PoolId]:
        """Return what is paused: the names of tags, and the ids of pools."""
    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle:
        """Return a handle with which another process of this user opens the block: `allotment.open_shared(handle)`.

        `block` is an address or a `Buffer`; for a slice, the whole block is shared. Handles of one block are equal. For
        `hold` seconds, or until `SharedHandle.close`, any number of processes can open the handle; after that no
        process can, until the block is shared again. During that time, and while another process has it open, the block
        is not reused, even if it is freed. A process that opens it waits for the work submitted to the block's streams
        before.

        Raises AddressError for an address that is not a live block, UnsupportedError if the device does not share
        memory (host memory does with the settings key `shareable:True`), CaptureError while a stream of the block is
        being captured, and DeviceError. Makes no copy, and calls the device only if the block's streams are busy. Safe
        to call from several threads.
        """
    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]:
        """Return (offset, handle) in PyTorch's own form: the block lies `offset` bytes into the memory that the handle
        opens.

        The form is that of the PyTorch version whose rules are in force. Pages always travel as descriptors, never as
        fabric handles, so only processes of this machine can open them; `share` uses the fabric if the machine has one.
        Nothing holds the block for the process that opens the handle: keep it until then.

        Raises AddressError; UnsupportedError for devices that do not share memory, and for blocks of `placement:dense`,
        whose pieces have no common size; DeviceError.
        """
    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        *,
        stacks: str = "python",
        max_entries: int | None = None,
        clear_history: bool = False,
        skip_actions: Collection[str] | None = None,
        recorder: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
        file: str | PathLike[str] | None = None,
    ) -> None:
        """Record what happens from now on, for `snapshot`; None stops recording and drops the history.

        `enabled` is "all" for every event, or "state" for only what blocks carry. `context` says what carries the
        Python stack of its cause: blocks ("state"), allocations too ("alloc"), frees too ("all"), or nothing (None).
        `max_entries` is the number of events kept, the newest ones, at least one; None keeps all, which grows as long
        as the program runs. `skip_actions` are events to omit. Each stack costs a walk over the Python frames.

        `recorder` is a function of yours that returns the stack instead, innermost frame first, each with a "name", a
        "filename" and a "line". The thread that allocates or frees calls it before the operation, without any lock. Its
        own requests have no stack, nor does a request for which it raises (`sys.unraisablehook` gets the exception). C
        code that calls the entry points still records Python's stack.

        With a `file`, events go to that file instead of memory, until `record_history` is called again or the allocator
        is closed: a few bytes each, which a separate thread writes. An existing file at that path is replaced. A killed
        program leaves a file that every command reads, up to the last second or so. If the disk is slower than the
        program, requests wait for it. If it fails, the file says what is lost and `sys.unraisablehook` gets the error.
        `max_entries` then has no effect, and `snapshot` shows no history.

        Raises RequestError, TypeError for a recorder that is not callable, OSError for a file that cannot be written.
        """
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """Return segments, blocks, history and settings in the form that PyTorch's memory tools read.

        `pool` chooses the segments, as in `segments`; `include_traces=False` omits the history. Everything with the
        same stack shares one list of frames, so treat them as read-only. Creates a dictionary for each block and event;
        `dump_snapshot` does not. Raises PoolError for a pool that never existed. Safe to call from several threads.
        """
