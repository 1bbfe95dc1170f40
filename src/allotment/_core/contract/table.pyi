class Device:
    """What every device is to Python: the owner of one filled-in contract table."""

    name: str
    """Which device it is, as users name it: "host", "cuda:1", "sim:1073741824"."""
    family: str
    """What kind of device it is: "cuda", "host", "simulated", or what a `Backend` of yours says it is."""
    @property
    def index(self) -> int:
        """The device's index, as reports and snapshots show it."""
    @property
    def capabilities(self) -> int:
        """What the device can do, as the bits of the contract."""

def functions(device: Device) -> list[int]:
    """The `self` of a device's table and then its functions, in the table's order; 0 for one that it does not have."""
