from allotment.core.backend cimport Device
from allotment.core.model cimport Failure

cdef object failure_error(Device device, const Failure* failure)
