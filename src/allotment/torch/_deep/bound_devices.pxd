"""Which allocator serves each device of PyTorch, and PyTorch's functions that the engine calls.

A device is bound to an allocator when PyTorch first requests memory on it, and stays bound until the process ends.
"""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport EntryPoints
from allotment._core.model.model cimport Engine
from allotment._core.records.trace cimport tracker_t
from allotment.torch._deep.header cimport allotment_interface, allotment_upcalls

cdef struct BoundDevice:    # all zero until the device is bound
    Engine* engine
    EntryPoints* entry_points
    const int* level        # which calls gather contexts
    int mark                # where a history notes exact addresses: 0 nowhere, 1 in the user's metadata, 2 separately

# pre: 0 <= device < ALLOTMENT_DEVICES_MOST
cdef BoundDevice* bound(int device) noexcept nogil

# Binds the device unless it is bound.
cdef EntryPoints* bind(int device) except NULL
cdef Allocator allocator_at(int device)
# Raises KeyError if the device is not bound.
cdef Allocator bound_allocator(int device)
# By device index.
cdef dict bound_allocators()
# State that PyTorch set for all devices, including those that it uses later.
cdef object state_of_all()

cdef const allotment_upcalls* upcalls() noexcept nogil
# PyTorch gathers contexts, on all devices; with `on` False, the allocators gather stacks as they are configured next.
cdef int let_framework_gather(bint on) except -1
cdef bint framework_gathers() noexcept nogil
# Attaches to the traces of all devices; the listener is the device's index.
cdef int listen(tracker_t tracker) except -1

cdef void fill_bound_devices(allotment_interface* table) noexcept
