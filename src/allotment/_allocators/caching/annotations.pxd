"""What an engine waits for, on the timeline of a profiler: each slow call of a device as a range of NVTX.

With `nvtx:True` an engine gets a copy of its device's table in which the functions that take long are these. They tell
the profiler, through the package `nvtx`, when a call begins and ends and how many bytes it is about; where these bytes
come or go, they sample two counters: all that the device has given, and what of it is in use. What the cache serves
passes none of them. Where no profiler listens, the engine keeps the device's own table.
"""

from allotment._core.contract.table cimport Device, DeviceTable
from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.model.model cimport Engine


cdef class Annotations:
    """One device with a profiler between it and its engines.

    The functions of the table get the device's `self` and nothing else, so engines on one device share what is told. It
    stays when they are gone, because a thread may be on its way into one of the functions; it holds no device.
    """
    cdef DeviceTable behind             # the device's own
    cdef DeviceTable table              # for engines
    cdef object name                    # of the device
    cdef object domain                  # of the package `nvtx`
    cdef object reserved_counter, allocated_counter
    cdef dict engines                   # address of each that is open -> that of its device's table
    cdef count_t reserved

    cdef void open_engine(self, Engine* engine) noexcept
    cdef void close_engine(self, Engine* engine) noexcept       # it has its device's own table again
    cdef void begin(self, str operation, bytes_t size) noexcept
    cdef void end(self, count_t change) noexcept     # in bytes reserved


# From now on the profiler is told of what the engine does. None: nobody listens. Raises UnsupportedError without the
# package.
cdef Annotations annotate(Device device, Engine* engine)
