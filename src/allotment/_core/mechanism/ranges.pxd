"""Addresses and physical memory: ranges, and the chunks mapped into them. See `Range` in the model.

A function here that makes several device calls leaves the range unchanged if one of them fails. If even the undo fails,
the chunk keeps its place in `views` as a leftover. The next attempt to map that page uses it, or the next emptying of
the cache releases it. So no chunk is lost.

The engine checks an address from a device, or from a pool's own allocator, before it gives it to a range. The maps rely
on unique addresses, and an address returned twice would otherwise be noticed only when a user's data is overwritten.
"""

from allotment._core.contract.table cimport IS_RECORDED
from allotment._core.contract.types cimport address_t, bytes_t, device_t
from allotment._core.model.model cimport Engine, Failure, Pool, Range, FreeList, StreamRecord

cdef enum:
    LEAST_ALIGNMENT = 16        # of plain segments: enough for any element type

cdef Range* range_make_plain(Engine* engine, FreeList* free_list, bytes_t size) noexcept nogil
cdef bint range_place(Engine* engine, Range* range_, address_t base, const char* operation,
                      Failure* failure) noexcept nogil
cdef void await_departure(Engine* engine, address_t base, bytes_t size) noexcept nogil
cdef const char* fault_of_address(Engine* engine, address_t base, bytes_t size, bytes_t alignment) noexcept nogil
cdef Range* overlapping(Engine* engine, address_t base, bytes_t size) noexcept nogil
cdef bint is_anybodys(Engine* engine, address_t base, bytes_t size) noexcept nogil
cdef void range_number(Engine* engine, Range* range_) noexcept nogil
cdef Range* range_reserve(
        Engine* engine, FreeList* free_list, bytes_t page, bytes_t size, Failure* failure) noexcept nogil
cdef bint range_give_back(Engine* engine, Range* range_, Failure* failure) noexcept nogil
cdef void range_forget(Engine* engine, Range* range_) noexcept nogil
cdef bint map_pages(Engine* engine, Range* range_, address_t address, bytes_t size, bytes_t* mapped,
                    Failure* failure) noexcept nogil
cdef bint unmap_pages(Engine* engine, Range* range_, address_t address, bytes_t size, address_t* start,
                      bytes_t* unmapped, Failure* failure) noexcept nogil
# Returns the bytes of the whole pages inside that a pause has left without memory. pre: mapped blocks
cdef bytes_t missing_bytes(const Range* range_, address_t address, bytes_t size) noexcept nogil
# Returns the same for all mapped blocks of the range.
cdef bytes_t missing_of(const Range* range_) noexcept nogil
# Release the memory under mapped blocks, and back them again; addresses and blocks stay. On failure, part of the work
# is done. Both functions skip what is done already.
cdef bint range_empty(Engine* engine, Range* range_, Failure* failure) noexcept nogil
cdef bint range_fill(Engine* engine, Range* range_, Failure* failure) noexcept nogil
cdef void drop_leftovers(Engine* engine) noexcept nogil
cdef bint grant_access(Engine* engine, device_t device, Failure* failure) noexcept nogil


cdef inline Range* first_range_of(Engine* engine, Pool* pool) noexcept nogil:
    """Return the first range of the list that contains the pool's ranges; the others follow by `next`."""
    return engine.first_range if pool.placement.ranges == NULL else pool.placement.ranges(engine, pool)


cdef inline bytes_t configured_range_bytes(const Engine* engine, const StreamRecord* stream) noexcept nogil:
    """Return the size that the settings give expandable ranges of a stream; 0 if they leave it open."""
    return stream.range_bytes if stream.range_bytes != 0 else engine.tuning.range_bytes


cdef inline bint has_recorded_addresses(const Engine* engine) noexcept nogil:
    """Whether addresses come from a recording, where ranges may overlap: the engine does not check them then."""
    return engine.table.capabilities & IS_RECORDED != 0
