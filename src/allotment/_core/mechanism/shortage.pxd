"""What every placement can do when memory is short: ask the callbacks, borrow, report what there was.

A pool that lends (`use_on_oom`) gives of its free memory to requests of the default pool. It is routed to for the
time of the search, which fails if it is routed to already.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Block, Engine, Request

cdef bint callbacks_freed(Engine* engine) noexcept nogil
cdef Block* borrow(Engine* engine, Request* request) noexcept nogil
cdef void note_out_of_memory(Engine* engine, Request* request) noexcept nogil
cdef bytes_t largest_free_block(Engine* engine) noexcept nogil
