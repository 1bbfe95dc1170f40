"""Connects the preloaded library to the process's allocators at depth `serve`; a device's first use creates its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from allotment._allocators.caching.entry_points import entry_points_address
from allotment._allocators.current import current_caching
from allotment._process.library import TENANTS, Preloaded

if TYPE_CHECKING:
    from allotment._devices.cuda.device import CudaDevice


def set_up_on(library: Preloaded) -> Callable[[int], bool]:
    """Return the function that connects a device's allocator to the library."""

    def set_up(device: int) -> bool:
        try:
            allocator = current_caching(f"cuda:{device}")
            allocator._note_streams(False)
            tables = [entry_points_address(allocator.tenant(name)) for name in TENANTS]
            library.serve(device, tables, cast("CudaDevice", allocator.device).create_stream())
        except BaseException as error:  # the program continues without Allotment
            print(f"allotment.preload: cuda:{device} is not served: {error}", file=sys.stderr, flush=True)
            return False
        return True

    return set_up
