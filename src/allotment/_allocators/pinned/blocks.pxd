"""Pinned memory in PyTorch's manner: powers of two, no splitting, no merging, events for what streams still use.

A block is in one of four places:

    lent      in use
    loose     freed, with streams that may still copy from or to it, and no event recorded yet
    waiting   behind an event of each of those streams, in one queue: what is freed first is looked at first, and an
              event that is not reached yet holds up all that come after it
    kept      on the list of its size class, from which the one freed last is taken first

One event serves all blocks that were loose on its stream: it is recorded by the next request, after all of them. What
is freed without a stream costs no event at all.

The lock story: the interpreter lock guards all of it. A device that is written in Python, or a collection, may come in
during any call to it, so whatever a step has taken out of a place is in nobody's reach until it is put somewhere else.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.pinned.memory cimport PinnedMemory
from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport address_t, bytes_t, count_t, event_t, stream_t
from allotment._core.tools.pointer_map cimport PointerMap

cdef enum:
    CLASS_COUNT = 64

cdef struct PinnedBlock:
    address_t address
    bytes_t size                # a power of two, unless the settings let it be exact
    int size_class              # ceil(log2 size)
    int awaited                 # events that it waits for
    bint lent
    bint in_capture             # asked for while the current stream was being captured: see `free`
    PinnedBlock* next           # on the list of its class

cdef struct Count:
    count_t current, peak, allocated, freed

cdef class PinnedBlocks:
    cdef PinnedMemory memory
    cdef bytes_t most_rounded       # above this a request is not rounded up to a power of two
    cdef bytes_t most_kept          # above this a block is not kept
    cdef bint catches_all           # a device that refuses to free takes the memory with it
    cdef bint looks_in_background
    cdef PointerMap by_address
    cdef PinnedBlock* kept[CLASS_COUNT]
    cdef dict streams           # address -> streams that were recorded for it
    cdef dict loose             # stream -> addresses
    cdef object queue           # of (event, addresses), oldest at the left
    cdef list spare_events
    cdef bint processing        # somebody looks at the queue
    cdef object background      # the thread that does, if the settings ask for one; None until it is needed
    cdef Count owned
    cdef Count owned_bytes
    cdef Count active[CLASS_COUNT]
    cdef Count active_bytes[CLASS_COUNT]
    cdef Count buckets[CLASS_COUNT]
    cdef object __weakref__
    cdef bint limited
    cdef bytes_t limit

    cdef address_t allocate(self, bytes_t size) except? 0
    cdef int free(self, address_t address, object streams) except -1
    cdef PinnedBlock* lent_block(self, address_t address) except NULL
    cdef PinnedBlock* obtain(self, bytes_t size, int size_class) except NULL
    cdef int release(self, PinnedBlock* block) except -1
    cdef void keep(self, PinnedBlock* block) noexcept
    cdef bint is_capturing(self, stream_t stream) except -1
    cdef bint record(self, stream_t stream, list addresses) except -1
    cdef int record_loose(self) except -1
    cdef int process(self) except -1
    cdef int await_all(self) except -1
    cdef int empty(self) except -1
    cdef bint works_in_capture(self) except -1
    cdef status_t ask(self, bytes_t size, address_t* address) except *
    cdef int check(self, status_t status, str operation) except -1
    cdef count_t active_now(self) noexcept
