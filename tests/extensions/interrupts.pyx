"""A device whose functions are interrupted: Ctrl-C arrives during one of them, and Python notices afterwards."""

from allotment._core.contract.table cimport (
    CHUNK_CREATE, CHUNK_RELEASE, DEVICE_SYNCHRONIZE, MAP, SET_ACCESS, UNMAP, Device, DeviceTable, entry, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, device_t

cdef extern from "Python.h":
    void PyErr_SetInterrupt() noexcept nogil

cdef DeviceTable kept           # the original functions
cdef long left = -1             # calls until the interrupt; below 0 none will come


cdef void count() noexcept nogil:
    global left
    if left == 0:
        PyErr_SetInterrupt()
    if left >= 0:
        left -= 1


cdef status_t device_synchronize(void* self) noexcept nogil:
    count()
    return kept.device_synchronize(self)


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    count()
    return kept.chunk_create(self, size, chunk)


cdef status_t chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept nogil:
    count()
    return kept.chunk_release(self, chunk, size)


cdef status_t map(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil:
    count()
    return kept.map(self, address, size, chunk)


cdef status_t unmap(void* self, address_t address, bytes_t size) noexcept nogil:
    count()
    return kept.unmap(self, address, size)


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t device) noexcept nogil:
    count()
    return kept.set_access(self, address, size, device)


def interrupt(Device device not None):
    """Make the functions of a device count their calls."""
    global kept
    kept = device.table
    entry(&device.table, DEVICE_SYNCHRONIZE)[0] = <void*> device_synchronize
    entry(&device.table, CHUNK_CREATE)[0] = <void*> chunk_create
    entry(&device.table, CHUNK_RELEASE)[0] = <void*> chunk_release
    entry(&device.table, MAP)[0] = <void*> map
    entry(&device.table, UNMAP)[0] = <void*> unmap
    entry(&device.table, SET_ACCESS)[0] = <void*> set_access


def arm(long call):
    """Send the interrupt during this call from now on, counted from 0."""
    global left
    left = call


def disarm():
    """Whether the interrupt was sent."""
    global left
    sent = left < 0
    left = -1
    return sent
