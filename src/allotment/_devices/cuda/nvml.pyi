# Made from nvml.pyx by `make stubs`: change it there.

def processes(pci_bus_id: str) -> list[tuple[int, int]]:
    """Return (process id, bytes) of every process with memory on a GPU; empty if unknown."""
