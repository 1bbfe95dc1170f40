# Made from trial.pyx by `make stubs`: change it there.

from collections.abc import Callable

def try_every_function(index: int, report: Callable[[str, str], None]) -> None:
    """Call each function of the CUDA driver on a device; `report(function, complaint)` follows each call.

    The complaint is empty if the call was right. Does not call functions that need a second process, or a second device
    on a machine without one, nor those that depend on a failed one. Raises DeviceError if there is no usable driver.
    """
