# Made from interface.pyx by `make stubs`: change it there.

def address() -> int:
    """The address of the framework interface, for the torch allocator."""
