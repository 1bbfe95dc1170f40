from allotment._core.contract.table cimport CAN_VIRTUAL, DeviceTable
from allotment._core.model.model cimport Placement
from allotment._core.placement.dense.dense cimport dense_placement
from allotment._core.placement.pytorch.policy cimport torch_placement

from allotment.errors import SettingsError

cdef dict tables = {}       # name -> address of the table


cdef int placement_register(const Placement* placement) except -1:
    """Register a placement under its name. Raises ValueError if another has the name."""
    name = (<bytes> placement.name).decode()
    if tables.setdefault(name, <size_t> placement) != <size_t> placement:
        raise ValueError(f"a placement named {name!r} already exists")
    return 0


cdef const Placement* placement_named(str name) except NULL:
    """Return the table of a placement. Raises SettingsError for an unknown name."""
    if name not in tables:
        known = ", ".join(sorted(tables))
        raise SettingsError(
            f"unknown placement {name!r}; known: {known}", key="placement", value=name, allowed=known)
    return <const Placement*> <size_t> tables[name]


cdef int placement_check(const Placement* placement, const DeviceTable* device, str device_name) except -1:
    """Raise SettingsError for a placement that the device cannot support."""
    cdef str name = (<bytes> placement.name).decode()
    if not placement.needs_virtual or (device.capabilities & CAN_VIRTUAL != 0 and device.memory_info != NULL):
        return 0
    raise SettingsError(
        f"{device_name} does not support placement:{name}, which needs virtual memory and a device that reports its"
        " memory size; choose placement:torch", key="placement", value=name, allowed="torch")


placement_register(torch_placement())
placement_register(dense_placement())
