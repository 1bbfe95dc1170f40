# Made from trial.pyx by `make stubs`: change it there.

from collections.abc import Callable

def try_every_function(index: int, report: Callable[[str, str], None]) -> None:
    """Call each function of the CUDA driver on a device; `report(function, complaint)` follows each call.

    The complaint is empty where all was well. Functions that need a second process, or a second device where
    there is none, and those that build on one that failed are not called.
    Raises DeviceError if there is no driver that can be used.
    """
