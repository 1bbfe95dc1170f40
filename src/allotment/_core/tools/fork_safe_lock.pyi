# Made from fork_safe_lock.pyx by `make stubs`: change it there.

from typing import Any

def fork_safe_lock() -> Any:
    """Return a new `threading.RLock`: reentrant, because the forking thread may hold it."""
