# Made from raising.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device

def error_for(device: Device, status: int, operation: str) -> Exception:
    """The exception, not yet raised, for a status other than OK that `operation` of a device answered.

    If the device is written in Python, it is chained to the exception that this thread's last failing
    call of it raised.
    """
