# Made from raising.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device

def error_for(device: Device, status: int, operation: str) -> Exception:
    """Return, without raising it, the exception for a status other than OK that `operation` of a device returned.

    If the device is written in Python, the exception is chained to the exception of this thread's last failed call of
    the device.
    """
