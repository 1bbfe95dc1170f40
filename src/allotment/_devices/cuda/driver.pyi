# Made from driver.pyx by `make stubs`: change it there.

FUNCTIONS: tuple[str, ...]

OPTIONAL_FUNCTIONS: frozenset[str]

def driver_version() -> int: ...
