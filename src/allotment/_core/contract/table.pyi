# Made from table.pyx by `make stubs`: change it there.

class Device:
    """What every device is to Python: the owner of one filled-in contract table.

    Devices are made as `HostDevice`, `CudaDevice`, `SimulatedDevice` or a `Backend` of your own, and given to an
    `Allocator`, which keeps them alive. What they are does not change, so threads may share them.
    """

    @property
    def name(self) -> str:
        """Which device it is, as users name it: "host", "cuda:1", "sim:80GiB"."""
    @property
    def family(self) -> str:
        """What kind of device it is: "cuda", "host", "simulated", or what a `Backend` of yours says it is."""
    @property
    def index(self) -> int:
        """The device's index, as reports and snapshots show it."""
    @property
    def capabilities(self) -> int:
        """What the device can do, as the bits of the contract."""

def functions(device: Device) -> list[int]:
    """The `self` of a device's table and then its functions, in the table's order; 0 for one that it does not have."""
