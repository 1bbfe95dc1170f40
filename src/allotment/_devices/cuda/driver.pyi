FUNCTIONS: tuple[str, ...]
"""The driver's functions that are used, by the names under which libcuda exports them."""

OPTIONAL_FUNCTIONS: frozenset[str]
"""Those that an older driver may lack."""

def driver_version() -> int:
    """The newest CUDA that the driver supports: 1000 * major + 10 * minor.

    Raises DeviceError if there is no driver that can be used.
    """
