from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._core.engine cimport engine_reserve_ranges
from allotment._core.model.model cimport Failure
from allotment.torch._deep.bound_devices cimport allocator_at, bound, bound_allocator, bound_allocators, state_of_all
from allotment.torch._deep.failures cimport set_failure
from allotment.torch._deep.header cimport allotment_interface

from allotment._settings import parse_leniently, pytorch_caching_disabled
from allotment.errors import SettingsError


cdef double memory_fraction(int device) noexcept with gil:
    try:
        if bound(device).entry_points == NULL:
            return state_of_all().fractions.get(device, state_of_all().settings.per_process_memory_fraction)
        return bound_allocator(device).limits.memory_fraction
    except BaseException as error:
        set_failure(error)
        return 1.0


cdef int set_memory_fraction(int device, double fraction) noexcept with gil:
    try:
        if bound(device).entry_points != NULL:
            bound_allocator(device).limits.memory_fraction = fraction
        else:
            state_of_all().fractions[device] = fraction
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int enable(int on) noexcept with gil:
    try:
        state = state_of_all()
        with state.lock:
            state.caching = bool(on)
            for allocator in bound_allocators().values():
                allocator.pools.caching = state.caching and not pytorch_caching_disabled()
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int is_enabled() noexcept with gil:
    return state_of_all().caching


cdef int configure(const char* text) noexcept with gil:
    try:
        settings = text.decode()
        state = state_of_all()
        with state.lock:
            for allocator in bound_allocators().values():
                try:
                    allocator._configure_leniently(settings)
                except SettingsError:
                    pass        # PyTorch's own parser decides whether this is an error
            state.settings, _ = parse_leniently(settings, state.settings)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int enable_peer(int owner, int peer) noexcept with gil:
    try:
        allocator_at(owner).sharing.enable_peer_access(peer)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int set_reserve_class(int device, uint64_t stream, const char* name, size_t size) noexcept with gil:
    cdef Allocator allocator
    cdef Failure failure
    cdef bint ok
    try:
        allocator = bound_allocator(device)
        allocator.pools.set_reserve_class(stream, name.decode())
        if size and name.decode() not in dict(allocator.settings.expandable_segments_reserve_by_class):
            allocator.enter()
            ok = engine_reserve_ranges(allocator.engine, stream, size, &failure)
            allocator.leave(ok, &failure)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef void fill_control(allotment_interface* table) noexcept:
    table.memory_fraction = memory_fraction
    table.set_memory_fraction = set_memory_fraction
    table.enable = enable
    table.is_enabled = is_enabled
    table.configure = configure
    table.enable_peer = enable_peer
    table.set_reserve_class = set_reserve_class
