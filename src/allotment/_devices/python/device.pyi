# Made from device.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device

class PythonDevice(Device):
    """The compiled half of `Backend`: a contract table that calls the methods of this object."""

    def __init__(
        self, *, name: str | None = None, family: str | None = None, index: int = 0, host: bool = False
    ) -> None: ...
