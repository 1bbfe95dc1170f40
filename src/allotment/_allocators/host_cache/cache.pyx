"""A caching allocator for host memory: exact sizes, one per program phase or per thread, switched on by a guard.

Locks: one lock serves the whole process (see `allocation_map.pxd`). Code under it touches only C data and makes no
system call, so a thread holds it for nanoseconds and never while it waits. A request that hits the cache, and a free
that is cached, keep the interpreter lock and only *try* the other. If another thread has it, they release the
interpreter lock first and do the whole step without it. No thread waits for the interpreter while it holds the lock, so
C callers and the handlers around a fork may wait for the lock whatever they hold. System calls, including those of
memory written in Python, are made with neither lock. The guard is thread-local and needs no lock.

At exit nothing is torn down: the lock, the map and tables given to C stay valid until the process ends. Memory written
in Python is not called any more once the interpreter ends.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF

from allotment._allocators.buffer cimport free_buffer
from allotment._allocators.host_cache cimport default_cache
from allotment._allocators.host_cache.allocation_map cimport (
    ALREADY_FREE, DONE, LEAVES, NOT_ALLOCATED, Allocation, Leaving, Outcome, find, registry, send_back)
from allotment._allocators.host_cache.entry_points cimport CpuEntryPoints, entry_points_of
from allotment._allocators.host_cache.exact_cache cimport (
    Cache, Counters, allocate_new, cache_allocate, cache_broken_rule, cache_counters, cache_create,
    cache_destroy, cache_free, cache_release, keep, take_cached)
from allotment._allocators.host_cache.host_memory cimport HostMemory
from allotment._allocators.host_cache.python_memory cimport python_memory
from allotment._allocators.host_cache.system_memory cimport NO_FILL, System, aligned_memory, fill
from allotment._allocators.sizes cimport whole_size
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.arguments cimport read_address, read_arguments, read_size, refuse_pickling
from allotment._core.tools.lock cimport lock_give, lock_try, lock_wait
from allotment._core.tools.numbers cimport is_plain_int
from allotment._core.tools.weak_references cimport clear_weak_references_first

import os

from allotment._allocators.buffer import Buffer
from allotment.errors import (
    AddressError, DeviceError, InvariantError, OutOfMemoryError, OutOfMemoryFacts, RequestError, SizeError)

cdef extern from *:
    """
    #if defined(_MSC_VER)
    static __declspec(thread) void* allotment_innermost_guard;
    #else
    static __thread void* allotment_innermost_guard;
    #endif
    """
    PyObject* innermost_guard "allotment_innermost_guard"   # of this thread, with a reference; NULL if none

cdef CpuEntryPoints default_entry_points = entry_points_of(NULL)


# --- converts Python numbers, makes exceptions ---------------------------------------------------------------

cdef bytes_t wanted_bytes(object size) except? 0xFFFFFFFFFFFFFFFF:
    """pre: an int"""
    cdef bytes_t wanted = 0
    if not read_size(size, &wanted):
        raise out_of_memory(size, True)
    return wanted


cdef object out_of_memory(object size, bint too_large):
    cdef bytes_t recorded, cached
    with nogil:
        lock_wait(&registry.lock)
        recorded = registry.recorded_bytes
        cached = registry.cached_bytes
        lock_give(&registry.lock)
    page = system_figure("SC_PAGE_SIZE")
    in_use = recorded - cached if recorded > cached else 0
    return OutOfMemoryError(OutOfMemoryFacts(
        device="cpu", device_index=0, requested=size, rounded=size, segment_size=size,
        device_free=page * system_figure("SC_AVPHYS_PAGES"), device_total=page * system_figure("SC_PHYS_PAGES"),
        limit=None, allocated=in_use, reserved=in_use + cached, private_free=cached, largest_free=0, stream=0,
        too_large=bool(too_large)))


cdef object system_figure(str name):
    """Return 0 where the platform does not report it."""
    return os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else 0


cdef object refusal(Outcome outcome, address_t address):
    if outcome == ALREADY_FREE:
        return AddressError(f"{address:#x} is free already: it is on the free list of a caching allocator", address)
    assert outcome == NOT_ALLOCATED
    return AddressError(
        f"{address:#x} is not the start of memory in use: it was never allocated here, or has returned to the system",
        address)


# --- the objects users hold --------------------------------------------------------------------------------

cdef class CachingAllocator(HostMemory):
    """CachingAllocator(*, checked=False, system=None)\n--\n
    Host memory that is kept under its exact size when freed, and handed out again, last in first out.

    With `checked`, a free of memory that is already free, or that was never allocated, raises AddressError. Without it,
    the first is not detected and the memory is allocated twice; the second goes straight to the C library, as `free` in
    C does. While a checked allocator exists, memory that the default allocator (`allotment.cpu.allocate`) gets from the
    system is known too, so that it can be freed inside a guard.

    `system` replaces the C library's memory (64-byte aligned) as the source. It has allocate(size) and free(address),
    which are called with no lock held, and lives as long as the process.

    Safe to use from several threads, and in the child after a fork. When the allocator is destroyed, its cached memory
    returns to the system; memory in use stays valid.
    """

    def __cinit__(self, *args, **kwargs):
        cdef System* source = &aligned_memory
        cdef bint is_checked
        is_checked, system = read_arguments(CachingAllocator, args, kwargs).values()
        if system is not None:
            self.memory = python_memory(system)
            source = &self.memory.system
        with nogil:
            self.cache = cache_create(source, is_checked)
        if self.cache == NULL:
            raise MemoryError("the host has no memory for the records of a caching allocator")

    @cython.embedsignature(False)    # the class has it
    def __init__(self, *, checked: bool = False, system: System | None = None):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __dealloc__(self):
        cdef Cache* cache = self.cache
        if cache != NULL:
            with nogil:
                cache_destroy(cache)

    def __repr__(self):
        checked = "checked, " if self.checked else ""
        return f"<CachingAllocator, {checked}{self.cached_bytes} bytes cached>"

    def allocate(self, size: SupportsIndex | str, /) -> int:
        """Return the address of `size` bytes, uninitialized. Size 0 returns 0.

        `size` may also be text such as "1MiB". If the system has no memory, the allocator releases its whole cache and
        asks once more. Raises SizeError, OutOfMemoryError, and DeviceError for a `system` that fails for another
        reason.
        """
        return self.allocate_bytes(size)

    def free(self, address: Buffer | SupportsIndex, /) -> None:
        """Cache memory for the next request of its size. Memory that no caching allocator provided returns to the
        system.

        Another caching allocator may have allocated it; this one caches it. A `Buffer` of this one is closed. Freeing 0
        does nothing.
        """
        self.free_address(address)

    cdef object allocate_bytes(self, object size):
        cdef bytes_t wanted
        cdef address_t address = 0
        cdef Outcome outcome
        size = whole_size(size)
        wanted = wanted_bytes(size)
        if lock_try(&registry.lock):
            if take_cached(self.cache, wanted, &address):
                lock_give(&registry.lock)
                return address
            lock_give(&registry.lock)
            with nogil:
                outcome = allocate_new(self.cache, wanted, &address)
        else:
            with nogil:
                outcome = cache_allocate(self.cache, wanted, &address)
        if outcome != DONE:
            self.raise_out_of_memory(size)
        return address

    cdef int free_address(self, object given) except -1:
        cdef address_t address
        cdef Leaving leaving
        cdef Outcome outcome
        if not is_plain_int(given) and free_buffer(given, self):
            return 0
        address = read_address(given)
        if lock_try(&registry.lock):
            outcome = keep(self.cache, address, &leaving)
            lock_give(&registry.lock)
            if outcome == LEAVES:
                with nogil:
                    send_back(&leaving)
                return 0
        else:
            with nogil:
                outcome = cache_free(self.cache, address)
        if outcome != DONE:
            raise refusal(outcome, address)
        return 0

    cdef int raise_out_of_memory(self, object size) except -1:
        cause = self.memory.take_failure() if self.memory is not None else None
        if cause is None or isinstance(cause, MemoryError):
            raise out_of_memory(size, False) from cause
        raise DeviceError(f"cpu: allocate({size}) failed: {cause!r}", operation="allocate") from cause

    cdef int require_in_use(self, address_t address, bytes_t size) except -1:
        cdef Allocation* allocation
        cdef Outcome outcome = NOT_ALLOCATED
        cdef bytes_t found = 0
        with nogil:
            lock_wait(&registry.lock)
            allocation = find(address)
            if allocation != NULL:
                found = allocation.size
                outcome = DONE if allocation.times_cached == 0 else ALREADY_FREE
            lock_give(&registry.lock)
        if outcome != DONE:
            raise refusal(outcome, address)
        if size > found:
            raise SizeError(f"{size} bytes at {address:#x} exceed the {found} bytes allocated there", size)
        return 0

    def empty_cache(self) -> None:
        """Return the cached memory to the system."""
        with nogil:
            cache_release(self.cache)

    @property
    def checked(self) -> bool:
        """Whether frees are checked, as chosen at its creation."""
        return bool(self.cache.is_checked)

    @property
    def cached_bytes(self) -> int:
        """Number of cached bytes."""
        return self.stats()["cached_bytes"]

    def stats(self) -> dict[str, int]:
        """Return hits, misses, retries, cached_frees, system_frees, cached_blocks, cached_bytes."""
        cdef Counters counters
        with nogil:
            counters = cache_counters(self.cache)
        return counters

    def entry_points(self) -> object:
        """Return the C functions as a capsule named "allotment.cpu.entry_points"; host_cache/entry_points.pxd has their
        form.

        C code may call it at any time, so the allocator then lives as long as the process.
        """
        with cython.critical_section(self):
            if self.table.size == 0:
                self.table = entry_points_of(self.cache)
                Py_INCREF(self)
        return PyCapsule_New(&self.table, "allotment.cpu.entry_points", NULL)

    def check_invariants(self) -> None:
        """Raise InvariantError if the free lists, the allocation map and the counters disagree."""
        cdef const char* rule
        with nogil:
            rule = cache_broken_rule(self.cache)
        if rule != NULL:
            raise InvariantError((<bytes> rule).decode(), repr(self))


clear_weak_references_first(CachingAllocator)


cdef class Guard:
    """Guard(cache)\n--\n
    What `caching` returns: entered once at a time, left in reverse order, on the thread that entered it."""

    cdef CachingAllocator cache
    cdef PyObject* outer
    cdef bint is_entered

    def __cinit__(self, *args, **kwargs):
        cache = read_arguments(Guard, args, kwargs)["cache"]
        if not isinstance(cache, CachingAllocator | None):
            raise TypeError(f"a cache must be a CachingAllocator or None, not {type(cache).__name__}")
        self.cache = cache

    @cython.embedsignature(False)    # the class has it
    def __init__(self, cache: CachingAllocator | None):
        pass    # `__cinit__` has read the argument, so that every object is complete

    def __reduce__(self):
        return refuse_pickling(self, "it belongs to a thread of this process; make one in the other process")

    def __repr__(self):
        return f"<Guard of {self.cache!r}{', entered' if self.is_entered else ''}>"

    @property
    def cache(self) -> CachingAllocator | None:
        """Allocator that it installs; None: no caching."""
        return self.cache

    def __enter__(self) -> CachingAllocator | None:
        if self.is_entered:
            raise RequestError("this Guard is entered already; make another one to nest")
        self.is_entered = True
        self.outer = innermost_guard
        Py_INCREF(self)
        self.install(<PyObject*> self)
        return self.cache

    def __exit__(self, *exception) -> None:
        if innermost_guard != <PyObject*> self:
            raise RequestError(
                "this Guard is not the innermost one of this thread; leave guards in reverse order, on their thread")
        self.install(self.outer)
        self.is_entered = False
        Py_DECREF(self)

    cdef int install(self, PyObject* guard) except -1:
        global innermost_guard
        cdef CachingAllocator cache = (<Guard> guard).cache if guard != NULL else None
        innermost_guard = guard
        default_cache.install_cache(cache.cache if cache is not None else NULL)
        return 0


def caching(cache: CachingAllocator | None, /) -> Guard:
    """Let the default allocator use `cache` on this thread, inside a `with`; None means no caching."""
    return Guard(cache)


def current() -> CachingAllocator | None:
    """Return the allocator that this thread's innermost guard has installed."""
    return (<Guard> innermost_guard).cache if innermost_guard != NULL else None


cdef class DefaultAllocator(HostMemory):
    """DefaultAllocator()\n--\n
    The default allocator as an object: the owner of buffers that `empty` makes outside of every guard.

    It keeps no record of the memory it provides, so only `empty` makes buffers of its memory."""

    cdef set handing_out    # addresses for which a call of `empty` is making a buffer

    def __cinit__(self):
        self.handing_out = set()

    cdef int adopt(self, address_t address, bytes_t size) except -1:
        if address not in self.handing_out:
            raise AddressError(
                f"{address:#x} cannot become a Buffer of the default allocator; allotment.cpu.empty makes one", address)
        return 0

    def empty(self, size: SupportsIndex | str, /) -> Buffer:
        """`allotment.cpu.empty` outside of every guard."""
        count = whole_size(size)
        address = allocate(count)
        self.handing_out.add(address)
        try:
            return Buffer(self, address, count)
        except BaseException:
            free(address)
            raise
        finally:
            self.handing_out.discard(address)

    def __repr__(self):
        return "<the default allocator of host memory>"

    def allocate(self, size: SupportsIndex | str, /) -> int:
        """`allotment.cpu.allocate`."""
        return allocate(size)

    def free(self, address: Buffer | SupportsIndex, /) -> None:
        """`allotment.cpu.free`."""
        free(address)


cdef DefaultAllocator default_allocator = DefaultAllocator()


def empty(size: SupportsIndex | str, /) -> Buffer:
    """Return an uninitialized buffer of `size` bytes, from `current()`, or from the system if there is none.

    When its last reference is dropped, it returns to the allocator that it came from, or as `free` does.
    """
    cdef CachingAllocator cache = current()
    return (default_allocator if cache is None else cache).empty(size)


def array(shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
    """Return an uninitialized NumPy array on such memory; the array keeps its memory alive.

    Raises TypeError for a dtype that holds Python objects.
    """
    cdef CachingAllocator cache = current()
    return (default_allocator if cache is None else cache).array(shape, dtype)


def allocate(size: SupportsIndex | str, /) -> int:
    """Return memory of `current()`, or of the system if there is none: the default allocator."""
    cdef CachingAllocator cache = current()
    cdef bytes_t wanted
    cdef address_t address = 0
    cdef Outcome outcome
    if cache is not None:
        return cache.allocate_bytes(size)
    size = whole_size(size)
    wanted = wanted_bytes(size)
    with nogil:
        outcome = default_cache.default_allocate(wanted, &address)
    if outcome != DONE:
        raise out_of_memory(size, False)
    return address


def free(address: Buffer | SupportsIndex, /) -> None:
    """Free through `current()`. If there is none, the memory returns to the system, whether it was cached before or
    not.

    A `Buffer` is closed, and its memory returns to the allocator that it came from. Raises AddressError for memory that
    is on a free list.
    """
    cdef CachingAllocator cache = current()
    cdef address_t given
    cdef Outcome outcome
    if isinstance(address, Buffer) and isinstance(address.allocator, HostMemory):
        free_buffer(address, address.allocator)
        return
    if cache is not None:
        cache.free_address(address)
        return
    given = read_address(address)
    with nogil:
        outcome = default_cache.default_free(given)
    if outcome != DONE:
        raise refusal(outcome, given)


def record_free(address: SupportsIndex, /) -> None:
    """Declare that other code is freeing this memory: caching allocators forget it.

    The memory itself is not touched. Raises AddressError for memory that is on a checked allocator's free list.
    """
    cdef address_t given = read_address(address)
    cdef Outcome outcome
    with nogil:
        outcome = default_cache.record_free(given)
    if outcome != DONE:
        raise refusal(outcome, given)


def recorded_size(address: SupportsIndex, /) -> int | None:
    """Return the size of memory that a caching allocator provided, in use or cached; None if none of them knows it."""
    cdef address_t given = read_address(address)
    cdef Allocation* allocation
    cdef bint is_recorded
    cdef bytes_t size = 0
    with nogil:
        lock_wait(&registry.lock)
        allocation = find(given)
        is_recorded = allocation != NULL and not allocation.is_plain
        if is_recorded:
            size = allocation.size
        lock_give(&registry.lock)
    return size if is_recorded else None


def entry_points() -> object:
    """Return the default allocator's C functions; see `CachingAllocator.entry_points`."""
    return PyCapsule_New(&default_entry_points, "allotment.cpu.entry_points", NULL)


def set_fill(*, on_allocate: int | None = None, on_free: int | None = None) -> None:
    """For debugging: set bytes (0 to 255) to write over memory new from the system, and over memory that returns to it.

    None writes nothing. Memory whose size is unknown when it returns (it was never cached) is not written. Choose
    before other threads allocate.
    """
    for byte in (on_allocate, on_free):
        if byte is not None and not isinstance(byte, int):
            raise TypeError(f"a fill must be a byte, 0 to 255, or None, not {type(byte).__name__}")
        if byte is not None and not 0 <= byte <= 255:
            raise RequestError(f"invalid fill: {byte}; give a byte, 0 to 255, or None")
    fill.on_allocate = NO_FILL if on_allocate is None else on_allocate
    fill.on_free = NO_FILL if on_free is None else on_free
