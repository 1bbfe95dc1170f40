from allotment._core.contract.table cimport Device
from allotment._core.model.model cimport Failure

cdef object failure_error(Device device, const Failure* failure)
