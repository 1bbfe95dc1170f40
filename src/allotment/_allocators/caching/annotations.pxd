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
    """Of all engines on one device, which tells them apart no more than they do: by its table's `self`."""
    cdef object __weakref__
    cdef Device device
    cdef DeviceTable table              # for engines; the device's own is behind it
    cdef object domain                  # of the package `nvtx`
    cdef object reserved_counter, allocated_counter
    cdef set engines                    # addresses of those that are open
    cdef count_t reserved

    cdef void open_engine(self, Engine* engine) noexcept
    cdef void close_engine(self, Engine* engine) noexcept
    cdef void close_engines(self) noexcept
    cdef void begin(self, str operation, bytes_t size) noexcept
    cdef void end(self, count_t change) noexcept     # in bytes reserved


# None: nobody listens. Raises UnsupportedError without the package.
cdef Annotations annotations_of(Device device)
