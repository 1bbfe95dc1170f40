"""Connects the preloaded library to the process's allocators at depth `serve`; a device's first use creates its own."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, cast

from allotment._allocators.caching.entry_points import entry_points_address
from allotment._allocators.current import current_caching
from allotment._process.library import TENANTS, Preloaded

if TYPE_CHECKING:
    from allotment._devices.cuda.device import CudaDevice

_is_attached = False


def attach(library: Preloaded) -> None:
    """Start serving requests. Calling it again does nothing."""
    global _is_attached
    if _is_attached or library.depth != "serve":
        return
    _is_attached = True

    def set_up(device: int) -> bool:
        try:
            allocator = current_caching(f"cuda:{device}")
            tables = [entry_points_address(allocator.tenant(name)) for name in TENANTS]
            library.serve(device, tables, cast("CudaDevice", allocator.device).create_stream())
        except BaseException as error:  # the program continues without Allotment
            print(f"allotment.preload: cuda:{device} is not served: {error}", file=sys.stderr, flush=True)
            return False
        return True

    library.set_up_with(set_up)
    atexit.register(library.set_up_with, None)  # the last moment at which Python code can run
