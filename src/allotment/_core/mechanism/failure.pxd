"""Records why an operation failed. See `Failure` in the model."""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport OK, status_t
from allotment._core.contract.types cimport address_t
from allotment._core.model.model cimport FAILED_ADDRESS, FAILED_DEVICE, FAILED_HOST_MEMORY, Engine, Failure, Reason


cdef inline bint device_failed(Failure* failure, status_t status, const char* operation) noexcept nogil:
    failure.reason = FAILED_DEVICE
    failure.status = status
    failure.operation = operation
    return False


cdef inline bint pool_failed(Failure* failure, Reason reason, uint64_t first, uint64_t second) noexcept nogil:
    failure.reason = reason
    failure.pool_first = first
    failure.pool_second = second
    return False


cdef inline bint address_failed(Failure* failure, address_t address) noexcept nogil:
    failure.reason = FAILED_ADDRESS
    failure.address = address
    return False


cdef inline bint host_memory_failed(Failure* failure) noexcept nogil:
    failure.reason = FAILED_HOST_MEMORY
    return False


cdef inline void note_device_memory(Engine* engine, Failure* failure) noexcept nogil:
    """Store the memory figures that the device reports, if it can."""
    if engine.table.memory_info == NULL or engine.table.memory_info(
            engine.table.self, &failure.device_free, &failure.device_total) != OK:
        failure.device_free = 0
        failure.device_total = engine.total_memory
