"""Which allocator serves a device, and the framework's half of the points.

A device gets its allocator when PyTorch first requests memory on it, and keeps it until the process ends.
"""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport EntryPoints
from allotment._core.model.model cimport Engine
from allotment._core.records.trace cimport tracker_t
from allotment.torch._deep.header cimport allotment_framework, allotment_points

cdef struct Served:         # a device; all zero until it is used
    Engine* engine
    EntryPoints* table      # not NULL: the device is bound
    const int* level        # what contexts are gathered for
    int mark                # where an exact address is noted: 0 nowhere, 1 in the user's metadata, 2 separately

# pre: 0 <= device < ALLOTMENT_DEVICES_MOST
cdef Served* served_at(int device) noexcept nogil

# Creates the allocator on first use.
cdef EntryPoints* settled_table(int device) except NULL
cdef Allocator allocator_at(int device)
# Raises KeyError if the device is not used.
cdef Allocator used_allocator(int device)
# By device index.
cdef dict used_allocators()
# State that PyTorch set for all devices, including those used later.
cdef object told_to_all()

cdef const allotment_framework* framework() noexcept nogil
# The framework gathers contexts, on all devices; with `on` False, the allocators do, as configured next.
cdef int let_framework_gather(bint on) except -1
cdef bint framework_gathers() noexcept nogil
# Attaches to the traces of all devices, with the device's index as listener.
cdef int listen(tracker_t tracker) except -1

cdef void fill_served(allotment_points* table) noexcept
