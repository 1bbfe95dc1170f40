"""A CUDA device, its graphs and its holds, as seen from Python."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport Device, status_t
from allotment._core.contract.types cimport stream_t
from allotment._devices.cuda.context cimport CudaBackend
from allotment._devices.graphs cimport DeviceGraph


cdef class CudaDevice(Device):
    cdef CudaBackend backend
    cdef uint32_t* words            # pinned; each hold takes one
    cdef size_t words_left

    cdef int check(self, status_t status, str operation) except -1
    cdef uint32_t* next_word(self) except NULL


cdef class CudaGraph(DeviceGraph):
    pass


cdef class CudaHold:
    """A word in pinned memory that a stream waits for.

    The word is used once and never freed, because the device may read it long after this object is gone.
    """
    cdef uint32_t* word
    cdef readonly stream_t stream
