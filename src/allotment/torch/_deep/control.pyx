from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._core.engine cimport engine_reserve_ranges
from allotment._core.model.model cimport Failure
from allotment.torch._deep.failing cimport note
from allotment.torch._deep.header cimport allotment_points
from allotment.torch._deep.served cimport allocator_at, served_at, told_to_all, used_allocator, used_allocators

from allotment._settings import parse_leniently, pytorch_caching_disabled
from allotment.errors import SettingsError


cdef double memory_fraction(int device) noexcept with gil:
    try:
        if served_at(device).table == NULL:
            return told_to_all().fractions.get(device, told_to_all().settings.per_process_memory_fraction)
        return used_allocator(device).limits.memory_fraction
    except BaseException as error:
        note(error)
        return 1.0


cdef int set_memory_fraction(int device, double fraction) noexcept with gil:
    try:
        if served_at(device).table != NULL:
            used_allocator(device).limits.memory_fraction = fraction
        else:
            told_to_all().fractions[device] = fraction
        return 1
    except BaseException as error:
        return note(error)


cdef int enable(int on) noexcept with gil:
    try:
        told = told_to_all()
        with told.lock:
            told.caching = bool(on)
            for allocator in used_allocators().values():
                allocator.pools.caching = told.caching and not pytorch_caching_disabled()
        return 1
    except BaseException as error:
        return note(error)


cdef int is_enabled() noexcept with gil:
    return told_to_all().caching


cdef int configure(const char* text) noexcept with gil:
    try:
        given = text.decode()
        told = told_to_all()
        with told.lock:
            for allocator in used_allocators().values():
                try:
                    allocator._configure_leniently(given)
                except SettingsError:
                    pass        # PyTorch's own parser has raised for it, or allowed it
            told.settings, _ = parse_leniently(given, told.settings)
        return 1
    except BaseException as error:
        return note(error)


cdef int enable_peer(int owner, int peer) noexcept with gil:
    try:
        allocator_at(owner).sharing.enable_peer_access(peer)
        return 1
    except BaseException as error:
        return note(error)


cdef int set_reserve_class(int device, uint64_t stream, const char* name, size_t size) noexcept with gil:
    cdef Allocator allocator
    cdef Failure failure
    cdef bint ok
    try:
        allocator = used_allocator(device)
        allocator.pools.set_reserve_class(stream, name.decode())
        if size and name.decode() not in dict(allocator.settings.expandable_segments_reserve_by_class):
            allocator.enter()
            ok = engine_reserve_ranges(allocator.engine, stream, size, &failure)
            allocator.leave(ok, &failure)
        return 1
    except BaseException as error:
        return note(error)


cdef void fill_control(allotment_points* table) noexcept:
    table.memory_fraction = memory_fraction
    table.set_memory_fraction = set_memory_fraction
    table.enable = enable
    table.is_enabled = is_enabled
    table.configure = configure
    table.enable_peer = enable_peer
    table.set_reserve_class = set_reserve_class
