"""A simulated device's own stream-ordered pool: exact records, no memory.

A free piece is kept for requests of its own size. Its free takes effect, and the piece no longer counts as in use, when
the stream it was freed on has reached the free: has finished the work submitted before, and what it waits for. Until
then only that stream may reuse it. A full device releases idle pieces by itself.

In a capture a request is a node and an address. Its memory belongs to the graph, which has none here, so it takes no
capacity and is in no figure.
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.simulated.simulation cimport SimPool

# False if there is no memory for its records.
cdef bint fill_pool(DeviceTable* table, SimPool* pool) noexcept
cdef void clear_pool(SimPool* pool) noexcept
