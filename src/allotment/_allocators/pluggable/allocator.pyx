"""An allocator made of somebody else's functions: see the header, pluggable.pxd."""

cimport cython
from cpython.ref cimport Py_DECREF
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, malloc
from libc.stdlib cimport free as free_host_memory
from libc.string cimport memset

from allotment._allocators.device_calls cimport copy_memory, enable_peer, memory_info
from allotment._allocators.pluggable.ledger cimport (
    Entry, ledger_clear, ledger_copy, ledger_enter, ledger_find, ledger_init, ledger_refused, ledger_remove,
    ledger_reset_accumulated, ledger_reset_peak, ledger_stats)
from allotment._allocators.upcalls cimport write_unraisable
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.edge.snapshot cimport segment_dicts
from allotment._core.edge.walk cimport STATE_ALLOCATED, Arrangement, BlockCopy, SegmentCopy, arrangement_clear
from allotment._core.model.model cimport RawAllocator
from allotment._core.model.sizes cimport SMALL_SIZE
from allotment._core.records.stats cimport Stats, stats_flat, stats_nested
from allotment._core.tools.arguments cimport (
    DEVICES_MOST, read_address, read_callable, read_device_index, read_pool_id, read_stream)
from allotment._core.tools.numbers cimport int_value, is_plain_int

import ctypes
import operator
import os
import pickle

from _ctypes import CFuncPtr

from allotment import _texts as texts
from allotment._allocators.buffer import Buffer
from allotment._allocators.files import replaced
from allotment._core.edge.snapshot import assembled
from allotment._devices import open_device
from allotment._settings import Settings
from allotment.errors import (
    AddressError, DeviceError, OutOfMemoryError, OutOfMemoryFacts, RequestError, SizeError, UnsupportedError)

cdef object TOO_LARGE = 1 << 64         # no size_t
cdef str OWN_POOLS = "give it to a caching allocator instead: Allocator(device).pool(allocator=this)"

cdef str OWN_BOOKS = "a copy for each user, copy.copy(this), has the same functions and books of its own"


# --- segments for the pools of a caching allocator: called from inside its engine, without the interpreter lock ------

cdef address_t lend(void* self, bytes_t size, stream_t stream) noexcept nogil:
    cdef Lender* lender = <Lender*> self
    cdef Plug* plug = lender.plug
    cdef Entry entry
    if plug.alloc == NULL:
        return lend_from_python(lender, size, stream)
    entry.address = <address_t> plug.alloc(size, lender.device, <void*> stream)
    if not ledger_enter(&plug.ledger, entry.address, size, lender.device, stream):
        entry.size, entry.device, entry.stream = size, lender.device, stream
        release(plug, &entry)
        return 0
    return entry.address


cdef address_t lend_from_python(Lender* lender, bytes_t size, stream_t stream) noexcept with gil:
    cdef PluggableAllocator owner = <PluggableAllocator> lender.plug.owner
    try:
        return owner.obtain(size, lender.device, stream)
    except MemoryError:
        return 0
    except BaseException:
        write_unraisable(owner)
        return 0


cdef void take_back(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil:
    cdef Plug* plug = (<Lender*> self).plug
    cdef Entry entry
    if ledger_remove(&plug.ledger, address, &entry):
        release(plug, &entry)
    else:
        report_unknown(plug, address)


cdef void report_unknown(Plug* plug, address_t address) noexcept with gil:
    try:
        raise unknown_pointer(address)
    except AddressError:
        write_unraisable(<object> plug.owner)


cdef void release(Plug* plug, const Entry* entry) noexcept nogil:
    if plug.free != NULL:
        plug.free(<void*> entry.address, entry.size, entry.device, <void*> entry.stream)
    else:
        release_to_python(plug, entry)


cdef void release_to_python(Plug* plug, const Entry* entry) noexcept with gil:
    cdef PluggableAllocator owner = <PluggableAllocator> plug.owner
    try:
        owner.hand_back(entry.address, entry.size, entry.device, entry.stream)
    except BaseException:
        write_unraisable(owner)


cdef void drop_lender(void* self) noexcept with gil:
    Py_DECREF(<object> (<Lender*> self).plug.owner)


# --- the allocator -----------------------------------------------------------------------------------------------

cdef object unknown_pointer(object address):
    return AddressError(
        f"Trying to free a pointer not allocated here: {address:#x} was never handed out by this allocator, "
        "or has been freed", address)


cdef object unsupported(str operation, str instead):
    return UnsupportedError(f"a pluggable allocator does not support {operation}; {instead}", operation=operation)


@cython.final
cdef class PluggableAllocator:
    def __cinit__(self, *args, **kwargs):
        self.plug.owner = <void*> self
        self.callables = {}
        self.kept_alive = []
        self.observers = []
        self.fractions = {}
        self.pool_uses = {}
        self.device = Device()
        self.device.name = self.device.family = "pluggable"
        if not ledger_init(&self.plug.ledger):
            raise MemoryError("the host has no memory for the allocator's own records")

    def __init__(self, alloc, free, *, device=None, device_count=0, init=None, reset=None, memory_fraction=None,
                 base_alloc=None, record_stream=None, begin_allocate_to_pool=None, end_allocate_to_pool=None,
                 release_pool=None):
        cdef Plug* plug = &self.plug
        if self.initialized:
            raise RequestError("a pluggable allocator keeps the functions that it was made with; make another one")
        if alloc is None or free is None:
            raise TypeError("a pluggable allocator needs both alloc and free")
        if device is not None:
            self.device = device if isinstance(device, Device) else open_device(device)
            self.has_device = True
        plug.alloc = <alloc_t> self.read_function("alloc", alloc)
        plug.free = <free_t> self.read_function("free", free)
        plug.init = <init_t> self.read_function("init", init)
        plug.reset = <reset_t> self.read_function("reset", reset)
        plug.memory_fraction = <memory_fraction_t> self.read_function("memory_fraction", memory_fraction)
        plug.base_alloc = <base_alloc_t> self.read_function("base_alloc", base_alloc)
        plug.record_stream = <record_stream_t> self.read_function("record_stream", record_stream)
        plug.begin_allocate_to_pool = <begin_pool_t> self.read_function(
            "begin_allocate_to_pool", begin_allocate_to_pool)
        plug.end_allocate_to_pool = <end_pool_t> self.read_function("end_allocate_to_pool", end_allocate_to_pool)
        plug.release_pool = <end_pool_t> self.read_function("release_pool", release_pool)
        self.init(device_count)

    @staticmethod
    def from_library(path, alloc_name, free_name, *, device=None, device_count=0, **hooks):
        try:
            library = ctypes.CDLL(os.fspath(path))
        except OSError as error:
            raise RequestError(f"{os.fspath(path)!r} cannot be loaded as a library: {error}") from error
        for name, given in hooks.items():
            hooks[name] = symbol(library, given) if isinstance(given, str) else given
        return PluggableAllocator(
            symbol(library, alloc_name), symbol(library, free_name), device=device, device_count=device_count, **hooks)

    def __dealloc__(self):
        cdef Lender* lender = self.lenders
        cdef Lender* following
        while lender != NULL:
            following = lender.next
            free_host_memory(lender)
            lender = following
        ledger_clear(&self.plug.ledger)

    def __copy__(self):
        cdef PluggableAllocator other = PluggableAllocator.__new__(PluggableAllocator)
        cdef Plug* plug = &other.plug
        plug.alloc, plug.free = self.plug.alloc, self.plug.free
        plug.init, plug.reset = self.plug.init, self.plug.reset
        plug.memory_fraction, plug.base_alloc = self.plug.memory_fraction, self.plug.base_alloc
        plug.record_stream = self.plug.record_stream
        plug.begin_allocate_to_pool = self.plug.begin_allocate_to_pool
        plug.end_allocate_to_pool, plug.release_pool = self.plug.end_allocate_to_pool, self.plug.release_pool
        other.callables = dict(self.callables)
        other.kept_alive = list(self.kept_alive)
        other.device = self.device
        other.has_device = self.has_device
        other.initialized = self.initialized
        return other

    def __deepcopy__(self, memo):
        return self.__copy__()

    def __repr__(self):
        return f"<PluggableAllocator on {self.device.name}>" if self.has_device else "<PluggableAllocator>"

    @property
    def name(self):
        return "pluggable"

    @property
    def caching(self):
        return True

    @caching.setter
    def caching(self, on):
        pass    # there is no cache of ours to switch

    # --- what it is made of, and what it is asked ---

    cdef void* read_function(self, str name, object given) except? NULL:
        """The C function that was given; NULL if it is a Python callable, which is kept, or None."""
        if given is None:
            return NULL
        if isinstance(given, CFuncPtr):
            self.kept_alive.append(given)
            given = ctypes.cast(given, ctypes.c_void_p).value or 0
        if isinstance(given, int):
            if not 0 < given < TOO_LARGE:
                raise RequestError(f"{name}: there is no function at address {given}")
            return <void*> <uint64_t> given
        if not callable(given):
            raise TypeError(
                f"{name} is a C function (its address or a ctypes function) or a callable, not {type(given).__name__}")
        self.callables[name] = given
        return NULL

    cdef object call(self, str name, tuple arguments):
        """The answer of a Python callable; None if there is none."""
        function = self.callables.get(name)
        if function is None:
            return None
        try:
            return function(*arguments)
        except Exception as error:
            raise failed(name, error) from error

    cdef device_t device_index(self, object device) except? -1:
        return read_device_index(device, self.device)

    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF:
        return read_stream(stream, self.device if self.has_device else None)

    cdef int require_device(self, str operation) except -1:
        if not self.has_device:
            raise unsupported(operation, "it was made without a device: give it one, PluggableAllocator(..., device=)")
        return 0

    def init(self, device_count):
        cdef init_t hook = self.plug.init
        cdef int count
        if not 0 <= operator.index(device_count) <= DEVICES_MOST:
            raise RequestError(f"no machine has {device_count} devices")
        count = device_count
        if hook != NULL:
            with nogil:
                hook(count)
        else:
            self.call("init", (count,))
        self.initialized = True

    # --- allocating and freeing ---

    def malloc(self, size, stream=0, *, device=None):
        cdef device_t index = self.device_index(device)
        cdef stream_t handle = self.stream_handle(stream)
        cdef bytes_t wanted = self.wanted_bytes(size, index, handle)
        cdef address_t address
        try:
            address = self.obtain(wanted, index, handle)
        except OutOfMemoryError as error:
            self.tell_observers(error.facts)
            raise
        if address == 0 and wanted != 0 and self.observers:
            self.tell_observers(self.facts(size, index, handle))
        return address

    def free(self, address, /):
        cdef address_t pointer = read_address(address)
        cdef Entry entry
        if not ledger_remove(&self.plug.ledger, pointer, &entry):
            raise unknown_pointer(pointer)
        self.hand_back(entry.address, entry.size, entry.device, entry.stream)

    def empty(self, size, stream=0, *, device=None):
        address = self.malloc(size, stream, device=device)
        if address == 0 and size != 0:
            raise OutOfMemoryError(self.facts(size, self.device_index(device), self.stream_handle(stream)))
        return Buffer(self, address, size, stream)

    cdef bytes_t wanted_bytes(self, object size, device_t device, stream_t stream) except? 0:
        cdef long long value = 0
        if is_plain_int(size) and int_value(size, &value) and value >= 0:
            return value
        size = operator.index(size)
        if size < 0:
            raise SizeError(f"a request cannot have {size} bytes", size)
        if size >= TOO_LARGE:
            raise OutOfMemoryError(self.facts(size, device, stream, True))
        return size

    cdef address_t obtain(self, bytes_t size, device_t device, stream_t stream) except? 0:
        """What the alloc function gave, null included, entered in the ledger."""
        cdef alloc_t function = self.plug.alloc
        cdef address_t address
        if function != NULL:
            with nogil:
                address = <address_t> function(size, device, <void*> stream)
        else:
            address = self.ask_python(size, device, stream)
        if not ledger_enter(&self.plug.ledger, address, size, device, stream):
            self.hand_back(address, size, device, stream)
            raise MemoryError("the host has no memory for the allocator's own records")
        return address

    cdef address_t ask_python(self, bytes_t size, device_t device, stream_t stream) except? 0:
        try:
            address = self.callables["alloc"](size, device, stream)
            return 0 if address is None else operator.index(address)
        except MemoryError as error:
            ledger_refused(&self.plug.ledger, device)
            raise OutOfMemoryError(self.facts(size, device, stream)) from error
        except Exception as error:
            raise failed("alloc", error) from error

    cdef int hand_back(self, address_t address, bytes_t size, device_t device, stream_t stream) except -1:
        cdef free_t function = self.plug.free
        if function != NULL:
            with nogil:
                function(<void*> address, size, device, <void*> stream)
        else:
            self.call("free", (address, size, device, stream))
        return 0

    cdef object facts(self, object size, device_t device, stream_t stream, bint absurd=False):
        cdef Stats stats
        device_free, device_total = 0, 0
        ledger_stats(&self.plug.ledger, device, &stats)
        if self.has_device and not absurd:
            try:
                device_free, device_total = memory_info(self.device)
            except DeviceError:
                pass    # a device that does not tell must not hide that memory is out
        nested = stats_nested(&stats)
        return OutOfMemoryFacts(
            device=self.device.name, device_index=device, requested=size, rounded=size, segment_size=size,
            device_free=device_free, device_total=device_total, limit=None,
            allocated=nested["allocated_bytes"]["all"]["current"],
            reserved=nested["reserved_bytes"]["all"]["current"], private_free=0, largest_free=0, stream=stream,
            absurd=bool(absurd))

    cdef int tell_observers(self, object facts) except -1:
        for observer in self.observers:
            observer(facts)
        return 0

    def attach_out_of_memory_observer(self, observer):
        self.observers.append(read_callable(observer, "an observer"))

    # --- hooks ---

    def record_stream(self, block, stream):
        cdef record_stream_t hook = self.plug.record_stream
        cdef address_t address = read_address(getattr(block, "address", block))
        cdef stream_t handle = self.stream_handle(stream)
        if hook != NULL:
            with nogil:
                hook(<void*> address, <void*> handle)
        else:
            self.call("record_stream", (address, handle))

    def empty_cache(self, pool=(0, 0)):
        cdef reset_t hook = self.plug.reset
        if hook != NULL:
            with nogil:
                hook()
        else:
            self.call("reset", ())

    def base_allocation(self, address):
        cdef base_alloc_t hook = self.plug.base_alloc
        cdef address_t base = read_address(address)
        cdef Entry entry
        cdef size_t size = 0
        if ledger_find(&self.plug.ledger, base, &entry):
            size = entry.size
        if hook != NULL:
            with nogil:
                base = <address_t> hook(<void*> base, &size)
        elif "base_alloc" in self.callables:
            answer = self.call("base_alloc", (base,))
            try:
                if isinstance(answer, tuple):
                    base, size = answer
                else:
                    base = operator.index(answer)
            except (TypeError, ValueError, OverflowError) as error:
                raise failed("base_alloc", error) from error
        return base, size

    def set_memory_fraction(self, fraction, device=None):
        cdef memory_fraction_t hook = self.plug.memory_fraction
        cdef double part = fraction
        cdef device_t index = self.device_index(device)
        if not 0.0 <= part <= 1.0:
            raise RequestError(f"a memory fraction lies between 0 and 1, which {fraction} does not")
        if hook != NULL:
            with nogil:
                hook(part, index)
        elif "memory_fraction" in self.callables:
            self.call("memory_fraction", (part, index))
        else:
            return
        self.fractions[index] = part

    def get_memory_fraction(self, device=None):
        try:
            return self.fractions[self.device_index(device)]
        except KeyError:
            raise unsupported(
                "get_memory_fraction of a device for which none was set",
                "give it a memory_fraction function and set one") from None

    @property
    def memory_fraction(self):
        return self.get_memory_fraction()

    @memory_fraction.setter
    def memory_fraction(self, fraction):
        self.set_memory_fraction(fraction)

    # --- pools that its functions make ---

    def begin_allocate_to_pool(self, pool, *, accepts=None, device=None):
        cdef begin_pool_t hook = self.plug.begin_allocate_to_pool
        cdef device_t index = self.device_index(device)
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if hook != NULL:
            with nogil:
                hook(index, first, second, NULL)
        else:
            self.call("begin_allocate_to_pool", (index, (first, second), accepts))
        use = index, (first, second)
        self.pool_uses[use] = self.pool_uses.get(use, 0) + 1

    def end_allocate_to_pool(self, pool, *, device=None):
        cdef end_pool_t hook = self.plug.end_allocate_to_pool
        cdef device_t index = self.device_index(device)
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if hook != NULL:
            with nogil:
                hook(index, first, second)
        else:
            self.call("end_allocate_to_pool", (index, (first, second)))

    def release_pool(self, pool, *, device=None):
        cdef end_pool_t hook = self.plug.release_pool
        cdef device_t index = self.device_index(device)
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        use = index, (first, second)
        left = self.pool_uses.pop(use, 0) - 1
        if left > 0:
            self.pool_uses[use] = left
        if hook != NULL:
            with nogil:
                hook(index, first, second)
        else:
            self.call("release_pool", (index, (first, second)))

    def pool_use_count(self, pool, *, device=None):
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        return self.pool_uses.get((self.device_index(device), (first, second)), 0)

    # --- figures ---

    def nested_stats(self, device=None):
        cdef Stats stats
        ledger_stats(&self.plug.ledger, self.device_index(device), &stats)
        return stats_nested(&stats)

    def stats(self, device=None):
        return stats_flat(self.nested_stats(device))

    def reset_peak_stats(self, device=None):
        ledger_reset_peak(&self.plug.ledger, self.device_index(device))

    def reset_accumulated_stats(self, device=None):
        ledger_reset_accumulated(&self.plug.ledger, self.device_index(device))

    def summary(self, abbreviated=False):
        return texts.memory_summary(self.stats(), self.device.name, abbreviated=abbreviated)

    def memory_info(self):
        if not self.has_device:
            raise UnsupportedError(
                "getMemoryInfo is not implemented for this allocator yet. It was made without a device: "
                "give it one, PluggableAllocator(..., device=)", operation="memory_info")
        return memory_info(self.device)

    def cache_info(self, largest=0):
        return largest or self.memory_info()[0]

    def segments(self, pool=(0, 0)):
        cdef Entry* entries
        cdef size_t count, i
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if first != 0 or second != 0:
            return []
        with nogil:
            entries = ledger_copy(&self.plug.ledger, &count)
        if entries == NULL:
            raise MemoryError("the host has no memory for a snapshot")
        try:
            found = []
            for device in sorted({entries[i].device for i in range(count)}):
                found += segments_of_device(entries, count, device)
            return found
        finally:
            free_host_memory(entries)

    def snapshot(self, pool=(0, 0), include_traces=True):
        segments = self.segments(pool)
        last = max([segment["device"] for segment in segments] + [self.device.table.device])
        return assembled(segments, {}, last + 1, Settings().as_pytorch_dict(), [])      # no history is kept

    def dump_snapshot(self, path):
        with replaced(path) as file:
            pickle.dump(self.snapshot(), file)

    # --- the device it was given ---

    def enable_peer_access(self, peer):
        self.require_device("enable_peer_access")
        enable_peer(self.device, peer)

    def copy(self, destination, source, size, stream=0, *, source_device=None):
        self.require_device("copy")
        copy_memory(self.device, destination, source, size, source_device, self.stream_handle(stream))

    # --- lending ---

    cdef RawAllocator raw_allocator(self, device_t device) except *:
        cdef RawAllocator raw
        cdef Lender* lender = self.lenders
        while lender != NULL and lender.device != device:
            lender = lender.next
        if lender == NULL:
            lender = <Lender*> malloc(sizeof(Lender))
            if lender == NULL:
                raise MemoryError("the host has no memory for the allocator's own records")
            lender.plug = &self.plug
            lender.device = device
            lender.next = self.lenders
            self.lenders = lender
        raw.allocate = lend
        raw.free = take_back
        raw.drop = drop_lender
        raw.self = lender
        return raw

    # --- what two functions cannot do ---

    def pool(self, *, use_on_oom=False, no_split=False, allocator=None):
        raise unsupported("pool", OWN_POOLS)

    def create_or_incref_pool(self, pool, allocator=None):
        raise unsupported("create_or_incref_pool", OWN_POOLS)

    def close_pool(self, pool):
        raise unsupported("close_pool", "its pools are its functions' own: release_pool tells them")

    def pool_reserved_bytes(self, pool):
        raise unsupported("pool_reserved_bytes", f"its functions do not say what they hold for whom; {OWN_POOLS}")

    def set_use_on_oom(self, pool, on):
        raise unsupported("set_use_on_oom", OWN_POOLS)

    def set_no_split(self, pool):
        raise unsupported("set_no_split", OWN_POOLS)

    def check_pool_live_allocations(self, pool, addresses):
        raise unsupported("check_pool_live_allocations", OWN_POOLS)

    def checkpoint_pool(self, pool):
        raise unsupported("checkpoint_pool", f"where its memory comes from cannot be restored; {OWN_POOLS}")

    def restore_pool(self, state):
        raise unsupported("restore_pool", f"where its memory comes from cannot be restored; {OWN_POOLS}")

    def tenant(self, name):
        raise unsupported("tenant", OWN_BOOKS)

    def tenants(self):
        raise unsupported("tenants", OWN_BOOKS)

    def share(self, address):
        raise unsupported("share", "share through whoever wrote its functions, or use Allocator(device).share")

    def expandable_segment_sizes(self):
        raise unsupported("expandable_segment_sizes", "it has no expandable segments; segments() shows what is out")

    def record_history(self, enabled="all", context="all", *, stacks="python", max_entries=None,
                       clear_history=False, skip_actions=None):
        raise unsupported("record_history", f"snapshot() shows what is out now; for a history {OWN_POOLS}")

    def record_annotation(self, pairs):
        raise unsupported("record_annotation", f"it keeps no history; {OWN_POOLS}")

    def attach_trace_tracker(self, tracker):
        raise unsupported("attach_trace_tracker", f"track in the functions themselves; or {OWN_POOLS}")


cdef object symbol(object library, str name):
    try:
        return library[name]
    except AttributeError as error:
        raise RequestError(f"{library._name!r} has no function {name!r}") from error


cdef object failed(str name, object error):
    text = str(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return DeviceError(f"the {name} function of a pluggable allocator failed: {said}", operation=name)


cdef list segments_of_device(const Entry* entries, size_t count, device_t device):
    """Each entry of a device as a segment of one block, by address."""
    cdef Arrangement arrangement
    cdef SegmentCopy* segment
    cdef BlockCopy* block
    cdef size_t i
    memset(&arrangement, 0, sizeof(Arrangement))
    arrangement.segments = <SegmentCopy*> calloc(count + 1, sizeof(SegmentCopy))
    arrangement.blocks = <BlockCopy*> calloc(count + 1, sizeof(BlockCopy))
    try:
        if arrangement.segments == NULL or arrangement.blocks == NULL:
            raise MemoryError("the host has no memory for a snapshot")
        for i in range(count):
            if entries[i].device != device:
                continue
            segment = &arrangement.segments[arrangement.segment_count]
            block = &arrangement.blocks[arrangement.block_count]
            segment.first_block = arrangement.block_count
            segment.block_count = 1
            arrangement.segment_count += 1
            arrangement.block_count += 1
            segment.address = block.address = entries[i].address
            segment.total = segment.allocated = segment.active = segment.requested = entries[i].size
            block.size = block.requested = entries[i].size
            block.state = STATE_ALLOCATED
            segment.stream = entries[i].stream
            segment.is_small = entries[i].size <= SMALL_SIZE
        return sorted(segment_dicts(&arrangement, device), key=operator.itemgetter("address"))
    finally:
        arrangement_clear(&arrangement)
