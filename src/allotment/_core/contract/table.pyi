class Device:
    """What every backend is to Python: the owner of one filled-in contract table."""

    name: str
    @property
    def index(self) -> int:
        """The device's index, as reports and snapshots show it."""
    @property
    def capabilities(self) -> int:
        """What the device can do, as the bits of the contract."""
