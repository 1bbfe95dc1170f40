"""The framework interface, filled in: see framework_interface.h."""

from libc.string cimport memset

from allotment.torch._deep.blocks cimport fill_blocks
from allotment.torch._deep.bound_devices cimport bind, fill_bound_devices
from allotment.torch._deep.control cimport fill_control
from allotment.torch._deep.failures cimport fill_failures, set_failure
from allotment.torch._deep.header cimport ALLOTMENT_INTERFACE_VERSION, allotment_interface
from allotment.torch._deep.history cimport fill_history
from allotment.torch._deep.pools cimport fill_pools
from allotment.torch._deep.snapshots cimport fill_snapshots
from allotment.torch._deep.statistics cimport fill_statistics


cdef int bind_device(int device) noexcept with gil:
    try:
        bind(device)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef allotment_interface table
memset(&table, 0, sizeof(allotment_interface))
table.size = sizeof(allotment_interface)
table.version = ALLOTMENT_INTERFACE_VERSION
table.bind = bind_device
fill_bound_devices(&table)
fill_failures(&table)
fill_blocks(&table)
fill_statistics(&table)
fill_pools(&table)
fill_history(&table)
fill_snapshots(&table)
fill_control(&table)


def address() -> int:
    """The address of the framework interface, for the torch allocator."""
    return <size_t> &table
