"""Shows the slow calls of a device on a profiler's timeline, each as an NVTX range.

With `nvtx:True` an engine gets a copy of its device's table in which these functions replace the slow ones. Through the
package `nvtx`, they report to the profiler when a call begins and ends and how many bytes it concerns. Where these
bytes come or go, they sample two counters: all memory that the device has provided, and the part in use. Cache hits
pass none of them. If no profiler listens, the engine keeps the device's own table.
"""

from allotment._core.contract.table cimport Device, DeviceTable
from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.model.model cimport Engine


cdef class Annotations:
    """One device with a profiler between it and its engines.

    The functions of the table get only the device's `self`, so engines on one device share these annotations. The
    annotations outlive the engines, because a thread may be about to enter one of the functions; they hold no device.
    """
    cdef DeviceTable behind             # the device's own
    cdef DeviceTable table              # for engines
    cdef object name                    # of the device
    cdef object domain                  # of the package `nvtx`
    cdef object reserved_counter, allocated_counter
    cdef dict engines                   # address of each open engine -> address of its device's table
    cdef count_t reserved

    cdef void open_engine(self, Engine* engine) noexcept
    cdef void close_engine(self, Engine* engine) noexcept       # gives it its device's own table again
    cdef void begin(self, str operation, bytes_t size) noexcept
    cdef void end(self, count_t change) noexcept     # in bytes reserved


# Reports the engine's slow calls to the profiler from now on. None: no profiler listens. Raises UnsupportedError
# without the package.
cdef Annotations annotate(Device device, Engine* engine)
