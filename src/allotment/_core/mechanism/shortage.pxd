"""What every placement can do when memory is short: run the callbacks, borrow, report the facts.

A pool that lends (`use_on_oom`) serves requests of the default pool from its free memory. During the search, requests
are routed to the lending pool; the search fails if they are routed to it already.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Block, Engine, Request, free_memory_t
from allotment._core.records.stats cimport tally_now

cdef bint callbacks_freed(Engine* engine) noexcept nogil
cdef bint callback_add(Engine* engine, free_memory_t run, void* self) noexcept nogil
cdef bint callback_remove(Engine* engine, void* self) noexcept nogil
# With `early`, borrows from lent pools, before the engine asks the device; else from pools that lend when memory is
# out.
cdef Block* borrow(Engine* engine, Request* request, bint early) noexcept nogil
cdef void note_out_of_memory(Engine* engine, Request* request) noexcept nogil
cdef void note_rejection(Engine* engine, Request* request) noexcept nogil
cdef bytes_t largest_free_block(Engine* engine) noexcept nogil


cdef inline bytes_t share_of_memory(const Engine* engine) noexcept nogil:
    """Return the settings' share of the device's memory in bytes, whatever the current limit is."""
    return <bytes_t> (engine.tuning.share * <double> engine.total_memory)


cdef inline bint rejects(const Engine* engine, bytes_t segment) noexcept nogil:
    """Whether the settings forbid asking the device for a segment."""
    return (engine.tuning.rejects
            and <bytes_t> tally_now(&engine.stats.reserved_bytes) + segment > share_of_memory(engine))
