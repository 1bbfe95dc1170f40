"""Noting why something failed. See `Failure` in the model."""

from allotment.core.backend cimport status_t
from allotment.core.model cimport FAILED_DEVICE, FAILED_HOST_MEMORY, Failure


cdef inline bint device_failed(Failure* failure, status_t status, const char* operation) noexcept nogil:
    failure.reason = FAILED_DEVICE
    failure.status = status
    failure.operation = operation
    return False


cdef inline bint host_memory_failed(Failure* failure) noexcept nogil:
    failure.reason = FAILED_HOST_MEMORY
    return False
