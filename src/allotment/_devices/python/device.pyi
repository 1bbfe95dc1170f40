# Made from device.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device

class PythonDevice(Device):
    def __init__(
        self, *, name: str | None = None, family: str | None = None, index: int = 0, host: bool = False
    ) -> None: ...
