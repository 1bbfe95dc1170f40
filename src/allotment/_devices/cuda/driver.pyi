# Made from driver.pyx by `make stubs`: change it there.

FUNCTIONS: tuple[str, ...]

OPTIONAL_FUNCTIONS: frozenset[str]

def driver_version() -> int:
    """Return the newest CUDA version that the driver supports: 1000 * major + 10 * minor. Raises DeviceError."""
