# Made from _handler.pyx by `make stubs`: change it there.

from typing import Any

class NumpyCache:
    """A memory handler that serves arrays of at least `threshold` bytes for a tenant."""

    def __init__(self, tenant: Any, threshold: int) -> None: ...
    @property
    def tenant(self) -> Any:
        """Tenant that it allocates for."""
    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that arrays have now."""
    def take_peak(self) -> int:
        """Return the peak of `live_bytes` since the last call."""
    def enter(self) -> Any:
        """Serve the calling context from now on; return the previous handler, for `leave`."""
    def leave(self, before: Any) -> None:
        """Restore the calling context's previous handler."""
    def install(self) -> None:
        """Serve every context that has no handler of its own."""

def uninstall() -> None:
    """Stop serving new arrays of the process; existing ones are freed here."""

def is_installed() -> bool:
    """Whether arrays of contexts without their own handler are served here."""

def take_refusal() -> str | None:
    """Return why the calling thread's last request was refused, once; None if none was."""
