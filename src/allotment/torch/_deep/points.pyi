# Made from points.pyx by `make stubs`: change it there.

def address() -> int:
    """The table of points, for the stand-in."""
