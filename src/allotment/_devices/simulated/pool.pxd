"""A simulated device's own stream-ordered pool: exact accounts, no memory.

A piece is kept for requests of its own size once it is free. Its free takes effect, and the piece counts as in
use no longer, when the stream it was freed on has come so far: has finished what it was given before, and what it
was told to wait for. Until then only that stream may have it again. A full device takes idle pieces back by itself.

In a capture a request is a node and an address; its memory is the graph's, which has none here, so it takes no
capacity and is in no figure.
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.simulated.simulation cimport SimPool

# False if there is no memory for its records.
cdef bint fill_pool(DeviceTable* table, SimPool* pool) noexcept
cdef void clear_pool(SimPool* pool) noexcept
