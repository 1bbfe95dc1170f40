"""What a pluggable allocator takes as a function."""

from _ctypes import CFuncPtr
from collections.abc import Callable
from typing import Any

Function = int | CFuncPtr | Callable[..., Any]
"""C code by its address, a function of ctypes, or a Python callable."""
