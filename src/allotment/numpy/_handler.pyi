# Made from _handler.pyx by `make stubs`: change it there.

from typing import Any

class NumpyCache:
    """A memory handler that serves arrays of at least `threshold` bytes in the name of a tenant."""

    def __init__(self, tenant: Any, threshold: int) -> None: ...
    @property
    def tenant(self) -> Any:
        """In whose name it allocates."""
    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that arrays have now."""
    def take_peak(self) -> int:
        """The most that arrays had since this was last asked for."""
    def enter(self) -> Any:
        """Serve the calling context from now on; gives the handler that did before, for `leave`."""
    def leave(self, before: Any) -> None:
        """Let the calling context have the handler that it had before."""
    def install(self) -> None:
        """Serve every context that has no handler of its own."""

def uninstall() -> None:
    """Serve no new arrays of the process; those that are there come back here when they go."""

def is_installed() -> bool:
    """Whether arrays of contexts without a handler of their own are served here."""

def take_refusal() -> str | None:
    """Why the calling thread's last request was refused, once; None if none was."""
