"""The known placements, by name. `Placement` in the model says what one is.

An extension outside this package adds a placement when it is imported: it fills in a table and registers it. The
extension and its table must stay loaded for good, since a pool keeps the table it was created with. Registration
happens under the import lock.
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._core.model.model cimport Placement

cdef int placement_register(const Placement* placement) except -1
cdef const Placement* placement_named(str name) except NULL
cdef int placement_check(const Placement* placement, const DeviceTable* device, str device_name) except -1
