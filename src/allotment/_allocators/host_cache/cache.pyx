"""A caching allocator for host memory: exact sizes, one per program phase or per thread, switched on by a guard.

The lock story. One lock serves the whole process (see core/allocation_map.pxd): under it is C data alone, no
system call and no Python, so it is held for nanoseconds and never while waiting for anything. A request that
hits the cache, and a free that is cached, keep the interpreter lock and only *try* the other; if somebody has
it, the interpreter is let go first and the whole step is done without it. Nobody ever waits for the interpreter
while holding the lock, so C callers and the handlers around a fork may wait for the lock whatever they hold.
System calls, also those of memory written in Python, are made with neither. The guard is thread-local and
needs no lock.

At exit nothing is torn down: the lock, the map and tables given to C stay valid until the process ends, and
memory written in Python is not called any more once the interpreter goes.
"""

from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t

from allotment._allocators.host_cache cimport default_cache
from allotment._allocators.host_cache.allocation_map cimport (
    ALREADY_FREE, DONE, LEAVES, NOT_ALLOCATED, Allocation, Leaving, Outcome, find, registry, send_back)
from allotment._allocators.host_cache.entry_points cimport CpuEntryPoints, entry_points_of
from allotment._allocators.host_cache.exact_cache cimport (
    ABSURD_POWER, Cache, Counters, allocate_new, cache_allocate, cache_broken_rule, cache_counters, cache_create,
    cache_destroy, cache_free, cache_release, keep, take_cached)
from allotment._allocators.host_cache.python_memory cimport python_memory
from allotment._allocators.host_cache.system_memory cimport NO_FILL, System, aligned_memory, fill
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.lock cimport lock_give, lock_try, lock_wait

import operator
import os

from allotment.errors import (
    AddressError, DeviceError, InvariantError, OutOfMemoryError, OutOfMemoryFacts, RequestError, SizeError)

cdef extern from "Python.h":
    size_t PyLong_AsSize_t(object) except? <size_t> -1      # the others take a detour through bytes

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


# --- from Python numbers, to exceptions --------------------------------------------------------------------

cdef bytes_t wanted_bytes(object size) except? 0xFFFFFFFFFFFFFFFF:
    cdef long long wanted
    cdef int overflow = 0
    if not PyLong_CheckExact(size):
        size = operator.index(size)
    wanted = PyLong_AsLongLongAndOverflow(size, &overflow)
    if wanted < 0 or (wanted >> ABSURD_POWER) != 0 or overflow != 0:
        if size < 0:
            raise SizeError(f"a request cannot have {size} bytes", size)
        raise out_of_memory(size, True)
    return wanted


cdef address_t given_address(object address) except? 0xFFFFFFFFFFFFFFFF:
    if not PyLong_CheckExact(address):
        address = operator.index(address)
    try:
        return PyLong_AsSize_t(address)
    except OverflowError:
        raise AddressError(f"{address} is no address", address) from None


cdef object out_of_memory(object size, bint absurd):
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
        absurd=bool(absurd)))


cdef object system_figure(str name):
    """0 where the platform does not tell."""
    return os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else 0


cdef object refusal(Outcome outcome, address_t address):
    if outcome == ALREADY_FREE:
        return AddressError(f"{address:#x} is free already: it lies on the free list of a caching allocator", address)
    assert outcome == NOT_ALLOCATED
    return AddressError(
        f"{address:#x} is not the start of memory in use: it was never allocated here, or it went back to the system",
        address)


# --- the objects users hold --------------------------------------------------------------------------------

cdef class CachingAllocator:
    def __cinit__(self, *, checked=False, system=None):
        cdef bint is_checked = checked
        cdef System* source = &aligned_memory
        if system is not None:
            self.memory = python_memory(system)
            source = &self.memory.system
        with nogil:
            self.cache = cache_create(source, is_checked)
        if self.cache == NULL:
            raise MemoryError("no memory for a caching allocator")

    def __dealloc__(self):
        cdef Cache* cache = self.cache
        if cache != NULL:
            with nogil:
                cache_destroy(cache)

    def __repr__(self):
        checked = "checked, " if self.checked else ""
        return f"<CachingAllocator, {checked}{self.cached_bytes} bytes cached>"

    def allocate(self, size, /):
        return self.allocate_bytes(size)

    def free(self, address, /):
        self.free_address(address)

    cdef object allocate_bytes(self, object size):
        cdef bytes_t wanted = wanted_bytes(size)
        cdef address_t address = 0
        cdef Outcome outcome
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
        cdef address_t address = given_address(given)
        cdef Leaving leaving
        cdef Outcome outcome
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

    def empty_cache(self):
        with nogil:
            cache_release(self.cache)

    @property
    def checked(self):
        return bool(self.cache.is_checked)

    @property
    def cached_bytes(self):
        return self.stats()["cached_bytes"]

    def stats(self):
        cdef Counters counters
        with nogil:
            counters = cache_counters(self.cache)
        return counters

    def entry_points(self):
        if self.table.size == 0:
            self.table = entry_points_of(self.cache)
            Py_INCREF(self)
        return PyCapsule_New(&self.table, "allotment.cpu.entry_points", NULL)

    def check_invariants(self):
        cdef const char* rule
        with nogil:
            rule = cache_broken_rule(self.cache)
        if rule != NULL:
            raise InvariantError((<bytes> rule).decode(), repr(self))


cdef class Guard:
    """What `caching` returns: entered once at a time, left in reverse order, on the thread that entered it."""
    cdef readonly CachingAllocator cache
    cdef PyObject* outer
    cdef bint is_entered

    def __cinit__(self, CachingAllocator cache):
        self.cache = cache

    def __enter__(self):
        if self.is_entered:
            raise RequestError("this guard has been entered already; nest another one")
        self.is_entered = True
        self.outer = innermost_guard
        Py_INCREF(self)
        self.install(<PyObject*> self)
        return self.cache

    def __exit__(self, *exception):
        if innermost_guard != <PyObject*> self:
            raise RequestError("guards are left in the reverse order of entering, on the same thread")
        self.install(self.outer)
        self.is_entered = False
        Py_DECREF(self)

    cdef int install(self, PyObject* guard) except -1:
        global innermost_guard
        cdef CachingAllocator cache = (<Guard> guard).cache if guard != NULL else None
        innermost_guard = guard
        default_cache.install_cache(cache.cache if cache is not None else NULL)
        return 0


def caching(CachingAllocator cache, /):
    return Guard(cache)


def current():
    return (<Guard> innermost_guard).cache if innermost_guard != NULL else None


def allocate(size, /):
    cdef CachingAllocator cache = current()
    cdef bytes_t wanted
    cdef address_t address = 0
    cdef Outcome outcome
    if cache is not None:
        return cache.allocate_bytes(size)
    wanted = wanted_bytes(size)
    with nogil:
        outcome = default_cache.default_allocate(wanted, &address)
    if outcome != DONE:
        raise out_of_memory(size, False)
    return address


def free(address, /):
    cdef CachingAllocator cache = current()
    cdef address_t given
    cdef Outcome outcome
    if cache is not None:
        cache.free_address(address)
        return
    given = given_address(address)
    with nogil:
        outcome = default_cache.default_free(given)
    if outcome != DONE:
        raise refusal(outcome, given)


def record_free(address, /):
    cdef address_t given = given_address(address)
    cdef Outcome outcome
    with nogil:
        outcome = default_cache.record_free(given)
    if outcome != DONE:
        raise refusal(outcome, given)


def recorded_size(address, /):
    cdef address_t given = given_address(address)
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


def entry_points():
    return PyCapsule_New(&default_entry_points, "allotment.cpu.entry_points", NULL)


def set_fill(*, on_allocate=None, on_free=None):
    for byte in (on_allocate, on_free):
        if byte is not None and not 0 <= byte <= 255:
            raise RequestError(f"a fill is a byte, not {byte}")
    fill.on_allocate = NO_FILL if on_allocate is None else on_allocate
    fill.on_free = NO_FILL if on_free is None else on_free
