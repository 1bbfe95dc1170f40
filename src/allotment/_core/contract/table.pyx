"""The Python face of a device that the engine can run on."""

from libc.stddef cimport size_t
from libc.string cimport memset

from allotment._core.contract.table cimport OPERATION_COUNT, TABLE_VERSION, DeviceTable, entry


cdef class Device:
    """What every device is to Python: the owner of one filled-in contract table.

    Devices are made as `HostDevice`, `CudaDevice`, `SimulatedDevice` or a `Backend` of your own, and given to an
    `Allocator`, which keeps them alive. What they are does not change, so threads may share them.
    """

    def __cinit__(self, *args, **kwargs):
        memset(&self.table, 0, sizeof(DeviceTable))
        self.table.size = sizeof(DeviceTable)
        self.table.version = TABLE_VERSION
        self.table.self = <void*> self
        self.name = self.family = "device"

    @property
    def name(self) -> str:
        """Which device it is, as users name it: "host", "cuda:1", "sim:80GiB"."""
        return self.name

    @property
    def family(self) -> str:
        """What kind of device it is: "cuda", "host", "simulated", or what a `Backend` of yours says it is."""
        return self.family

    @property
    def index(self) -> int:
        """The device's index, as reports and snapshots show it."""
        return self.table.device

    @property
    def capabilities(self) -> int:
        """What the device can do, as the bits of the contract."""
        return self.table.capabilities

    def __reduce__(self):
        raise TypeError(f"cannot pickle {self!r}: a device belongs to this process; make one in the other process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def functions(Device device not None) -> list[int]:
    """The `self` of a device's table and then its functions, in the table's order; 0 for one that it does not have."""
    return [<size_t> device.table.self, *[<size_t> entry(&device.table, place)[0] for place in range(OPERATION_COUNT)]]
