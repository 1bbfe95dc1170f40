"""The Python class of a device that the engine can run on."""

from libc.stddef cimport size_t
from libc.string cimport memset

from allotment._core.contract.table cimport OPERATION_COUNT, TABLE_VERSION, DeviceTable, entry

from itertools import count

cdef object _serials = count(1)


cdef class Device:
    """Base of every device: owns one filled-in contract table.

    Devices are `HostDevice`, `CudaDevice`, `SimulatedDevice`, or your own `Backend`. Pass one to an `Allocator`, which
    keeps it alive. Devices are immutable, so threads may share them.
    """

    def __cinit__(self, *args, **kwargs):
        memset(&self.table, 0, sizeof(DeviceTable))
        self.table.size = sizeof(DeviceTable)
        self.table.version = TABLE_VERSION
        self.table.serial = next(_serials)
        self.table.self = <void*> self
        self.name = self.family = "device"

    @property
    def name(self) -> str:
        """Name of the device, as users write it: "host", "cuda:1", "sim:80GiB"."""
        return self.name

    @property
    def family(self) -> str:
        """Kind of device: "cuda", "host", "simulated", or the family that your `Backend` names."""
        return self.family

    @property
    def index(self) -> int:
        """Index of the device, as reports and snapshots show it."""
        return self.table.device

    @property
    def capabilities(self) -> int:
        """Capabilities of the device, as the contract's bit flags."""
        return self.table.capabilities

    def __reduce__(self):
        raise TypeError(f"cannot pickle {self!r}: a device belongs to this process; make one in the other process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def functions(Device device not None) -> list[int]:
    """Return the `self` of a device's table, then its functions in the table's order; 0 where the device lacks one."""
    return [<size_t> device.table.self, *[<size_t> entry(&device.table, place)[0] for place in range(OPERATION_COUNT)]]
