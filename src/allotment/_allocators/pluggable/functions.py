"""The objects that a pluggable allocator accepts as a function."""

from _ctypes import CFuncPtr
from collections.abc import Callable
from typing import Any

Function = int | CFuncPtr | Callable[..., Any]
"""C code by its address, a ctypes function, or a Python callable."""
