"""Host memory as a device: this process's memory, threads for streams.

    host_memory      plain segments, how much memory there is        (cgroups: where the limits stand)
    host_virtual     ranges, chunks and views on one memory file
    host_streams     the contract's stream operations
      host_capture     what happens to a stream that is being captured
      host_workers     threads: start, work, end, exit, fork
        host_queue       the types behind streams, events and captures
          host_work        tasks and graphs of them
    handles, refusal, posix     tools of all of these
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport device_t
from allotment._devices.graphs cimport DeviceGraph
from allotment._devices.host.memory cimport HostMemory
from allotment._devices.host.queue cimport Scheduler
from allotment._devices.host.virtual cimport Arena


cdef struct Host:                   # `self` of the contract's functions
    device_t index
    HostMemory memory
    Arena arena
    Scheduler* scheduler
    uint64_t unlocked               # atomic; pinned blocks that could not be locked in memory


cdef class HostDevice(Device):
    cdef Host* host
    cdef bint is_open


cdef class HostGraph(DeviceGraph):
    pass
