# Made from table.pyx by `make stubs`: change it there.

class Device:
    """Base of every device: owns one filled-in contract table.

    Devices are `HostDevice`, `CudaDevice`, `SimulatedDevice`, or your own `Backend`. Pass one to an `Allocator`, which
    keeps it alive. Devices are immutable, so threads may share them.
    """

    @property
    def name(self) -> str:
        """Name of the device, as users write it: "host", "cuda:1", "sim:80GiB"."""
    @property
    def family(self) -> str:
        """Kind of device: "cuda", "host", "simulated", or the family that your `Backend` names."""
    @property
    def index(self) -> int:
        """Index of the device, as reports and snapshots show it."""
    @property
    def capabilities(self) -> int:
        """Capabilities of the device, as the contract's bit flags."""

def functions(device: Device) -> list[int]:
    """Return the `self` of a device's table, then its functions in the table's order; 0 where the device lacks one."""
