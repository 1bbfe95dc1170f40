from allotment._core.contract.raising cimport new_failures
from allotment._core.contract.table cimport IS_HOST, DeviceTable, entry
from allotment._core.contract.types cimport device_t
from allotment._devices.python.trampolines cimport trampolines

from allotment._core.contract.operations import GROUPS, OPERATIONS
from allotment._devices.python.methods import Methods

cdef dict PLACES = {operation: place for place, operation in enumerate(OPERATIONS)}


cdef class PythonDevice(Device):
    """PythonDevice(*, name=None, family=None, index=0, host=False)\n--\n
    The compiled half of `Backend`: a contract table that calls the methods of this object.
    """

    def __cinit__(self, *args, **kwargs):
        self.failures = new_failures(<void*> self)
        self.family = "python"
        self.name = type(self).__name__
        fill_table(&self.table, type(self))

    def __init__(self, *, str name=None, str family=None, device_t index=0, bint host=False):
        if name is not None:
            self.name = name
        if family is not None:
            self.family = family
        self.table.device = index
        if host:
            self.table.capabilities |= IS_HOST


cdef int fill_table(DeviceTable* table, type cls) except -1:
    for group in GROUPS:
        if not offers(cls, group):
            continue
        table.capabilities |= group.capability or 0
        for operation in group.operations:
            entry(table, PLACES[operation])[0] = entry(trampolines(), PLACES[operation])[0]
    return 0


cdef bint offers(type cls, object group) except -1:
    names = [operation.python_name for operation in group.operations if not operation.is_special]
    defined = [name for name in names if is_defined(cls, name)]
    if len(defined) == len(names):
        return True
    if group.is_required:
        raise TypeError(f"{cls.__name__} must define {' and '.join(names)}")
    if defined:
        missing = ", ".join([name for name in names if name not in defined])
        raise TypeError(f"{cls.__name__} defines {', '.join(defined)} and must then also define {missing}")
    return False


cdef bint is_defined(type cls, str method) except -1:
    attribute = getattr(cls, method, None)
    if attribute is None or attribute is getattr(Methods, method):
        return False
    if not callable(attribute):
        raise TypeError(f"{cls.__name__}.{method} is not a method but {attribute!r}")
    return True
