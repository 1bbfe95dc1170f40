"""A simulated device's own stream-ordered pool: exact records, no memory.

The pool keeps a free piece for requests of the piece's own size. A free takes effect, and the piece no longer counts as
in use, when the stream that freed it has reached the free: when it has finished the work submitted before, and what
that work waits for. Until then only that stream may reuse the piece. A full device releases idle pieces by itself.

In a capture, a request is a node and an address. Its memory belongs to the graph. Since a simulated graph has no
memory, it takes no capacity and appears in no figure.
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.simulated.simulation cimport SimPool

# False if there is no memory for its records.
cdef bint fill_pool(DeviceTable* table, SimPool* pool) noexcept
cdef void clear_pool(SimPool* pool) noexcept
