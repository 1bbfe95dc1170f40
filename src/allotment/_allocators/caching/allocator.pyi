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
    `SimulatedDevice`, ...). `settings` is a settings string or record, by default what the environment variable
    ALLOTMENT_CONF says. `limit` is the most that may be reserved, in bytes or as "20GiB". With `sanitize` it looks for
    races between streams and for misuse of freed memory: see `inspection`.

    Safe to use from several threads; a hit in the cache keeps the interpreter lock, anything that asks the device
    lets it go. `with allocator:` closes it at the end of the block. When it is closed, or the last reference goes, its
    memory goes back to the device but for blocks that are still in use, which a ResourceWarning tells.

    Raises SettingsError for settings that cannot be read or ask for another class (`make_allocator` chooses the
    class), RequestError for a name that is not a device's, DeviceError.
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
        """What happened to its memory: recording, trackers, snapshots, leaks."""
    @property
    def pools(self) -> Pools:
        """Its private pools by id, and how requests are routed to them."""
    @property
    def limits(self) -> Limits:
        """How much memory pools, tags and tenants may have, and what is called when it runs out."""
    @property
    def sleep(self) -> Sleep:
        """Tags and pools that are paused: their memory is given back while their addresses stay."""
    @property
    def sharing(self) -> Sharing:
        """Blocks that other processes and devices use."""
    @property
    def inspection(self) -> Inspection:
        """Figures, checks and findings, for tools and tests."""
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
    def _empty_quarantine(self) -> bool:
        """Let go of all that the sanitizer has kept back; whether that was anything."""
    @property
    def _sanitizer(self) -> Sanitizer | None: ...
    def reset_peak_stats(self) -> None:
        """Let the peaks start anew from what is in use now. Safe to call from several threads."""
    def tenants(self) -> dict[str, dict[str, int]]:
        """By name, the "blocks", "allocated_bytes" and "requested_bytes" held now; "" is what has no name.

        Looks at every block. Memory that was allocated while caching was off is not counted. Safe to call from several
        threads.
        """
    def tenant(self, name: str) -> Tenant:
        """This allocator for a user with a name, so that `tenants` and snapshots tell whose blocks are whose.

        A second call with the same name gives another object for the same tenant. Raises RequestError when there are
        too many names.
        """
    def pool(
        self, *, use_on_oom: bool = False, no_split: bool = False, allocator: Any = None, placement: str | None = None
    ) -> Pool:
        """A private pool: `with pool:` serves this thread's requests from its memory and from nowhere else.

        `use_on_oom` lends its free memory to others when memory is out; `no_split` hands out whole segments;
        `allocator` is where its segments come from: an object with allocate(size, stream) and
        free(address, size, stream), or a PluggableAllocator; `placement` is the name of another way to divide its
        memory than the allocator's. Raises SettingsError for a placement that is not there.
        """
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Give unused cached memory back to the device: that of all pools, or of one.

        Blocks in use stay, and all memory of a private pool that is in use (`pool_use_count`), as in PyTorch:
        `Pool.close` gives that back. Waits for events of blocks that other streams used, and calls the device for each
        segment.
        Raises PoolError for a pool that never was, DeviceError. Safe to call from several threads.
        """
    def trim_to(self, size: int | str) -> int:
        """Give cached memory back until no more than `size` bytes are reserved; gives how many bytes went.

        `size` is a number of bytes or a text such as "2GiB". What is in use stays, so more may be left. Waits and
        raises as `empty_cache` does. Safe to call from several threads.
        """
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
    def set_limit(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """Say how much memory a tag may have, or a pool, a tenant, or (None) the allocator as a whole.

        Each is a number of bytes or a text such as "2GiB"; None, and what is not given, is no limit from now on. One of
        them is given at least: `hard=None` removes all.

        `hard`: requests that need more raise OutOfMemoryError, whose `facts.limited_by` says whose limit it was. Of a
        tag or pool it counts memory that is reserved, of a tenant memory in use. `soft`: before more than this is
        reserved, cached memory goes back, which waits for other streams; it refuses nothing. `reserved`: others leave
        this much to be had, within the allocator's limit or the device's memory.

        What is held already stays. Raises RequestError without any limit, and for a soft limit of, or memory reserved
        for, a tenant, which shares its cache with others; PoolError for a pool that is gone; TypeError for what is none
        of these. Safe to call from several threads.
        """
    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """Ask `step(facts)` before a request fails for want of memory: whether it should be tried again.

        Steps are asked in the order in which they were added, after all that the allocator does by itself (the cache is
        empty then), on the thread that asked and without any lock. A step may free, pause tags, wait, and use the
        allocator; what it asks for itself goes without steps. Each is asked `tries` times at most for one request;
        then, or when it returns False or raises, the next has its turn, and after the last the request raises
        OutOfMemoryError. What it raises is reported through `sys.unraisablehook`. `allotment.relief` has steps that
        wait, spill and trim.

        Gives a function that removes the step. Raises TypeError for what cannot be called, RequestError for less than
        one try. Safe to call from several threads.
        """
    def pause(self, tag: str | Pool | Tenant, *, keep: str = "host") -> int:
        """Give the physical memory of a tag back to the device, and keep every address; gives how many bytes went.

        `keep` is "host": what is in blocks in use is copied to host memory first, and comes back at `resume`; or
        "nothing". `tag` is the name of a tag, a Pool whose memory is virtual (expandable segments), or a Tenant all of
        whose blocks are in such pools and tags, where no one else has any. Until it is resumed, requests for it raise
        PausedError, its blocks may be freed, and touching them is an error: on the host the process ends, with a
        message that names the tag. Graphs that use them stay as they are.

        Waits for all work of the device. If it fails, the memory is as it was, or asleep already and the rest of it can
        be paused again. A second time, nothing happens. Raises PoolError if nothing was ever allocated in this tag,
        PausedError if another process has a block of it open, a tenant shares its pages with others, or it is being
        paused or resumed now, UnsupportedError on devices without virtual memory, DeviceError, and MemoryError if the
        host has no room for the contents. Safe to call from several threads.
        """
    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Map memory under the addresses of what was paused, and bring its contents back.

        `progress(done, total)` is called with bytes on the way, for each pool. If it cannot be done, because the memory
        was taken meanwhile or a call fails, it is asleep as before and nothing is lost: it can be tried again. For
        want of memory the cache is given back first, and the steps of `on_out_of_memory` are asked. What is not paused
        stays as it is. Raises OutOfMemoryError, DeviceError, PoolError, and what `progress` raises. Safe to call from
        several threads.
        """
    def paused(self) -> set[str | PoolId]:
        """What is paused now: the names of tags, and the ids of pools."""
    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle:
        """A handle by which another process of this user opens the block: `allotment.open_shared(handle)`.

        `block` is an address or a `Buffer`; of a slice, its whole block is shared. Handles of one block are equal. For
        `hold` seconds, or until `SharedHandle.close`, any number of processes can open the handle; after that nobody
        can, until the block is shared again. So long, and while another process has it open, the block is not reused,
        also if it is freed meanwhile. Whoever opens it waits for the work that its streams were given before.

        Raises AddressError for what is not a live block, UnsupportedError if the device does not share memory (host
        memory does with the settings key `shareable:True`), CaptureError while a stream of the block is being captured,
        DeviceError. Costs no copy and no call of the device unless its streams are busy. Safe to call from several
        threads.
        """
    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]:
        """(offset, handle) in PyTorch's own form: the block lies `offset` bytes into what the handle opens.

        Its version is that of the PyTorch whose rules are in force. Pages always travel as descriptors, never as fabric
        handles, so only processes of this machine can open them; `share` uses the fabric where there is one. Nothing
        holds the block for the process that opens the handle: keep it until then.

        Raises AddressError, UnsupportedError for devices that do not share memory and for blocks of
        `placement:dense`, whose pieces have no common size, DeviceError.
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
        """Keep what happens from now on, for `snapshot`; None keeps nothing any more and forgets what was kept.

        `enabled` is "all" for every event, or "state" for what blocks know of themselves alone. `context` says what
        carries the Python stack that led to it: blocks ("state"), allocations too ("alloc"), frees too ("all"), or
        nothing (None). `max_entries` is how many events are kept, the newest of them, at least one; None is all,
        which grows for as long as it runs. `skip_actions` are events to leave out. Each stack is a walk over the Python
        frames.

        `recorder` is a function of yours that gives the stack instead, innermost frame first, each with a "name", a
        "filename" and a "line". It is called by the thread that allocates or frees, before that is done, without any
        lock; requests that it makes itself have no stack, and neither has one for which it raises (what it raises goes
        to `sys.unraisablehook`). C code that calls the entry points gets Python's stack all the same.

        With a `file`, events go there instead of into memory, for as long as it runs, until `record_history` is called
        again or the allocator is closed: a few bytes each, written by a thread of its own. What is at that path is
        replaced. A program that is killed leaves a file that every command reads, up to the last second or so. If the
        disk is slower than the program, requests wait for it; if it fails, what is lost is told in the file and the
        error goes to `sys.unraisablehook`. `max_entries` has no meaning then, and `snapshot` shows no history.

        Raises RequestError, TypeError for a recorder that cannot be called, OSError for a file that cannot be written.
        """
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """Segments, blocks, history and settings in the form that PyTorch's memory tools read.

        `pool` chooses the segments, as in `segments`; `include_traces` False leaves out the history. All that show
        one stack share its list of frames, so treat them as read-only. Makes a dictionary for each block and event;
        `dump_snapshot` does without. Raises PoolError for a pool that never was. Safe to call from several threads.
        """
