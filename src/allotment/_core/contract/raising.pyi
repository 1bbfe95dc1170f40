# Made from raising.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device

def error_for(device: Device, status: int, operation: str) -> Exception: ...
