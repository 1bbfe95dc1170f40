# Made from fork_safe_lock.pyx by `make stubs`: change it there.

from typing import Any

def fork_safe_lock() -> Any: ...
