"""Which allocator serves a device, and the framework's half of the points.

A device gets its allocator when PyTorch first wants memory of it; it keeps it to the end of the process.
"""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport EntryPoints
from allotment._core.model.model cimport Engine
from allotment._core.records.trace cimport tracker_t
from allotment.torch._deep.header cimport allotment_framework, allotment_points

cdef struct Served:         # a device; all zero until it is used
    Engine* engine
    EntryPoints* table      # not NULL: everything is there
    const int* level        # what contexts are gathered for
    int mark                # an exact address is noted 0 nowhere, 1 behind the user's metadata, 2 in a field of its own

# pre: 0 <= device < ALLOTMENT_DEVICES_MOST
cdef Served* served_at(int device) noexcept nogil

# The allocator comes into being here if it is not there yet.
cdef EntryPoints* settled_table(int device) except NULL
cdef Allocator allocator_at(int device)
# KeyError: the device is not used.
cdef Allocator used_allocator(int device)
# By device index.
cdef dict used_allocators()
# What PyTorch has told all devices, those to come too.
cdef object told_to_all()

cdef const allotment_framework* framework() noexcept nogil
# Contexts are gathered by the framework, on all devices; `on` False: by the allocators, as they are told next.
cdef int let_framework_gather(bint on) except -1
cdef bint framework_gathers() noexcept nogil
# To the records of all devices, with the device's index as listener.
cdef int listen(tracker_t tracker) except -1

cdef void fill_served(allotment_points* table) noexcept
