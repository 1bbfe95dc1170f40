cimport cython
from cpython cimport array

from allotment._allocators.base cimport AllocatorBase, amount, device_given
from allotment._allocators.buffer cimport free_buffer
from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entering cimport enter_once
from allotment._allocators.caching.inspection cimport Inspection
from allotment._allocators.parts cimport BasicInspection
from allotment._allocators.pinned.blocks cimport Fault, PinnedBlocks
from allotment._allocators.pinned.memory cimport PinnedMemory, host_stream, timing_dict
from allotment._allocators.sizes cimport whole_size
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.address_lookup cimport ELSEWHERE, IN_BLOCK, AddressLookup
from allotment._core.mechanism.limits cimport soft_limit_set
from allotment._core.model.model cimport Engine
from allotment._core.model.sizes cimport SMALL_SIZE, whole_blocks
from allotment._core.placement.pytorch.classes cimport SMALL_SEGMENT
from allotment._core.records.stats cimport tally_now
from allotment._core.tools.arguments cimport read_address, read_arguments, read_block, read_size, read_stream
from allotment._core.tools.interpreter cimport interpreter_ends

import array

from allotment import _settings as config
from allotment._allocators.current import note_holder
from allotment._settings import Settings
from allotment.errors import RequestError, SettingsError

cdef enum:
    NEEDED_PER_SPARE = 128

cdef array.array NO_HANDLES = array.array("Q")

cdef object HOST = host_stream()

# Settings that have a meaning only in the mode "torch".
cdef tuple OF_TORCH = (
    "pinned_use_background_threads", "pinned_max_round_threshold", "pinned_max_cached_size", "pinned_free_catch_all")


cdef void note_need(Engine* engine, bytes_t* most_needed, bytes_t size) noexcept nogil:
    cdef bytes_t needed
    if not enter_once(engine):
        return
    needed = <bytes_t> tally_now(&engine.stats.active_bytes) + whole_blocks(size)
    if needed > most_needed[0]:
        most_needed[0] = needed
        soft_limit_set(engine, needed + needed // NEEDED_PER_SPARE + SMALL_SEGMENT)
    engine_leave(engine)


def meaningless_in_tight(settings: Settings) -> list[str]:
    """The names of settings that are not as usual and have no meaning in the mode "tight"."""
    usual = Settings()
    return [name for name in OF_TORCH if getattr(settings, name) != getattr(usual, name)]


def refuse_settings_of_torch(settings: Settings) -> None:
    """Raise SettingsError for a setting that the mode "tight" gives no meaning."""
    for name in meaningless_in_tight(settings):
        raise SettingsError(
            f"{name} has no meaning in the mode 'tight', which neither rounds nor keeps single blocks; "
            "use mode='torch'", key=name, value=str(getattr(settings, name)), allowed="the default")


@cython.no_gc_clear     # a collection must not clear the device before the memory has returned to it
@cython.final
cdef class PinnedAllocator(AllocatorBase):
    """PinnedAllocator(device="cuda", *, settings=None, mode="torch", numa_node=None, limit=None)\n--\n
    Pinned host memory of a device, cached for reuse: a GPU copies from and to it at full speed. The `mode` "torch"
    decides as PyTorch does: sizes are powers of two, and no block is split or merged. "tight" splits and merges blocks
    of segments, which wastes far less of this expensive memory. `settings` are the `pinned_*` keys; a key without a
    meaning here is refused. `numa_node` is the node that provides the memory; `limit` is the most bytes that the
    allocator may hold. Freed memory is reused when the work that its streams had at the free is done.

    Safe to use from several threads. `with allocator:` closes it. Raises UnsupportedError for a device without pinned
    memory, SettingsError, RequestError.
    """

    def __cinit__(self, *args, **kwargs):
        device, settings, mode, numa_node, limit = read_arguments(PinnedAllocator, args, kwargs).values()
        if mode not in ("torch", "tight"):
            raise RequestError(f"mode must be 'torch' or 'tight', not {mode!r}")
        self.device = getattr(device, "device", None) or device_given(device)
        self.current_settings = config.from_environment() if settings is None else config.settings_of(settings)
        self.memory = PinnedMemory(self.device, self.current_settings, numa_node)
        if mode == "tight":
            refuse_settings_of_torch(self.current_settings)
            own = Settings(compat=self.current_settings.compat, release_lock_on_device_malloc=True)
            self.tight = Allocator(self.memory, settings=own)
            self.tight.engine.tuning.exact_above = SMALL_SIZE
        else:
            self.blocks = PinnedBlocks(self.memory, self.current_settings)
        if limit is not None:
            self.limit = limit
        note_holder(self)

    @cython.embedsignature(False)    # the class has it
    def __init__(
        self,
        device: str | Device | Allocator = "cuda",
        *,
        settings: str | Settings | None = None,
        mode: str = "torch",
        numa_node: int | None = None,
        limit: int | str | None = None,
    ):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __del__(self):
        if self.memory is not None and not self.closed and not interpreter_ends():    # the memory ends with the process
            self.shut()

    cdef int shut(self) except -1:
        if self.blocks is not None:
            self.blocks.close()
        elif self.tight is not None:
            self.tight.empty_cache()
        return 0

    cdef int apply_settings(self, object settings) except -1:
        raise SettingsError(
            "settings of pinned memory are chosen when its allocator is made; make another PinnedAllocator")

    @property
    def mode(self) -> str:
        """ "torch" or "tight"."""
        return "torch" if self.tight is None else "tight"

    # --- memory ---

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def malloc(self, size: int | str) -> int:
        """Return the address of at least `size` bytes.

        Size 0 returns 0. A miss calls the device, which is slow for pinned memory. Raises SizeError, MemoryError,
        DeviceError.
        """
        return self.allocate(size)

    cdef address_t allocate(self, object size) except? 0:
        cdef bytes_t wanted = 0
        size = whole_size(size)
        if not read_size(size, &wanted):
            raise MemoryError(f"out of pinned memory: {size} bytes were requested, more than any machine has")
        if wanted == 0:
            return 0
        if self.closed:
            self.require_open()
        if self.tight is None:
            return self.serve_block(wanted)
        note_need(self.tight.engine, &self.most_needed, wanted)
        return <address_t> self.tight.allocate(size, HOST, 0, 0)

    cdef address_t serve_block(self, bytes_t size) except 0:
        cdef Fault fault
        cdef address_t address = self.blocks.serve(size, &fault)
        if address == 0:
            self.blocks.raise_fault(&fault)
        return address

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address: Buffer | int, streams: Iterable[Stream | int] = ()) -> None:
        """Free a block; `streams` are those whose work so far may touch it. Freeing 0 does nothing.

        Without streams, passed here or recorded, no event is needed and the block can be reused at once. The free does
        not wait for a stream that is being captured: memory that a graph copies must outlive the graph. Raises
        AddressError, StreamError.
        """
        if free_buffer(address, self):
            return
        self.release(read_address(address), streams)

    cdef int release(self, address_t address, object streams) except -1:
        if address == 0:
            return 0
        if self.tight is None:
            return self.free_block(address, streams)
        for stream in streams:
            self.use_tight(address, stream)
        self.tight.free_owned(address, NULL)
        return 0

    cdef int free_block(self, address_t address, object streams) except -1:
        cdef array.array handles = NO_HANDLES
        cdef Fault fault
        if streams:
            handles = array.array("Q", [read_stream(stream, self.device) for stream in streams])
        if self.blocks.free(address, <const stream_t*> handles.data.as_ulonglongs, len(handles), &fault):
            return 0
        return self.blocks.raise_fault(&fault)

    cdef int use_tight(self, address_t address, object stream) except -1:
        cdef stream_t handle = read_stream(stream, self.device)
        self.tight.record_stream(address, handle)
        return 0

    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """Return a buffer of `size` bytes that frees itself when the last reference to it is dropped. `stream`, if any,
        is recorded as a user. Raises what `malloc` and `record_stream` raise.
        """
        count = whole_size(size)
        buffer = self.owned(self.allocate(count), count, 0 if stream is None else stream)
        if stream is not None:
            self.record_stream(buffer, stream)
        return buffer

    cdef object ready_buffer(self, object size, object stream):
        # A block is reused only when the streams that were recorded for it are done.
        return self.empty(size, stream)

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work.

        Raises AddressError, StreamError.
        """
        cdef address_t address = read_block(block)
        cdef Fault fault
        if address == 0:
            return
        if self.tight is not None:
            self.use_tight(address, stream)
        elif not self.blocks.use(address, read_stream(stream, self.device), &fault):
            self.blocks.raise_fault(&fault)

    def empty_cache(self) -> None:
        """Return unused memory that no stream can still touch to the device. Raises DeviceError."""
        cdef Fault fault
        if self.tight is not None:
            self.tight.empty_cache()
        elif not self.blocks.empty(&fault):
            self.blocks.raise_fault(&fault)

    cdef bint is_readable(self) noexcept:
        return True

    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *:
        if self.tight is not None:
            return self.tight.find_block(address, start, size)
        around = self.blocks.around(address)
        if around is None:
            return ELSEWHERE
        start[0], size[0] = around
        return IN_BLOCK

    # --- limits and figures ---

    cdef bint find_limit(self, bytes_t* most) noexcept:
        if self.tight is not None:
            return self.tight.find_limit(most)
        if self.blocks is None:
            return False
        most[0] = self.blocks.limit
        return self.blocks.limited

    cdef int put_limit(self, bint limited, bytes_t most) except -1:
        if self.tight is not None:
            return self.tight.put_limit(limited, most)
        self.blocks.limited, self.blocks.limit = limited, most
        return 0

    cdef bytes_t live_bytes(self) noexcept:
        if self.tight is not None:
            return self.tight.live_bytes()
        return <bytes_t> self.blocks.active_now() if self.blocks is not None else 0

    cdef str figures(self):
        if self.tight is not None:
            return self.tight.figures()
        return f"{amount(self.live_bytes())} live, {amount(self.blocks.owned_bytes.current)} reserved"

    cdef dict counters(self):
        if self.tight is None:
            return self.blocks.figures()
        found = self.tight.counters()
        return {
            "allocations": found["segment"]["all"],
            "allocated_bytes": found["reserved_bytes"]["all"],
            "active_requests": found["active"]["all"],
            "active_bytes": found["active_bytes"]["all"],
            "num_host_alloc": found["segment"]["all"]["allocated"],
            "num_host_free": found["segment"]["all"]["freed"],
            "host_alloc_time": timing_dict(&self.memory.obtaining),
            "host_free_time": timing_dict(&self.memory.releasing),
            "bucket_allocation": {},
        }

    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values."""
        if self.tight is None:
            self.blocks.reset_peaks()
        else:
            self.tight.reset_peak_stats()

    @property
    def inspection(self) -> PinnedInspection:
        """Figures and checks, for tools and tests."""
        return PinnedInspection(self)


@cython.final
cdef class PinnedInspection(BasicInspection):
    """PinnedInspection(allocator)\n--\n
    Figures and checks of a `PinnedAllocator`: its `inspection`. Times are in microseconds.
    """

    cdef PinnedAllocator allocator

    def __cinit__(self, PinnedAllocator allocator not None):
        self.allocator = allocator

    def summary(self, abbreviated: bool = False) -> str:
        """Return the counters as text, one line each; `abbreviated` omits those by size class."""
        return "\n".join(
            f"{key:40} {value}" for key, value in self.allocator.stats().items()
            if not (abbreviated and key.startswith("bucket_allocation")))

    def reset_accumulated_stats(self) -> None:
        """Restart the sums of all allocations and frees at 0."""
        if self.allocator.tight is None:
            self.allocator.blocks.reset_sums()
        else:
            Inspection(self.allocator.tight).reset_accumulated_stats()

    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first invariant that does not hold. For tests."""
        if self.allocator.tight is not None:
            Inspection(self.allocator.tight).check_invariants()
        else:
            self.allocator.blocks.check_figures()
