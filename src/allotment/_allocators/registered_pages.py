"""Ordinary pages, pinned in place: on a NUMA node if one is named, touched by several threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from allotment.errors import RequestError, UnsupportedError

_PAGE = 4096
_MBIND = {"x86_64": 237, "aarch64": 235}  # numbers of the system call
_BIND = 2
_NODES = Path("/sys/devices/system/node")


class RegisteredPages:
    """Source of segments of registered pages, and a record of them.

    `device` has `register_host(address, size)` and `unregister_host(address)`. Raises RequestError for a node that the
    machine does not have.
    """

    def __init__(self, device: Any, threads: int, numa_node: int | None) -> None:
        if numa_node is not None:
            _check_node(numa_node)
        self._device = device
        self.threads = threads
        self._numa_node = numa_node
        self._segments: dict[int, mmap.mmap] = {}

    def obtain(self, size: int) -> int:
        """Return the address of `size` bytes. Raises MemoryError, and what the device raises."""
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no memory for {size} bytes to pin: {error}") from error
        with suppress(AttributeError, OSError):  # large pages are mapped and pinned faster, where the system has any
            pages.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        if self._numa_node is not None:
            _bind(address, len(pages), self._numa_node)
        slices = _slices(address, size, self.threads)
        if len(slices) > 1:
            with ThreadPoolExecutor(len(slices)) as pool:
                list(pool.map(lambda piece: _touch(*piece), slices))
        # The whole segment at once, though PyTorch registers slices: the driver refuses a copy that spans two
        # registrations.
        self._device.register_host(address, size)
        self._segments[address] = pages
        return address

    def release(self, address: int) -> bool:
        """Free a segment; return False if it did not come from here."""
        if address not in self._segments:
            return False
        self._device.unregister_host(address)
        del self._segments[address]  # the mapping ends with its object
        return True


def _slices(address: int, size: int, threads: int) -> list[tuple[int, int]]:
    """Return (start, size) of a part for each thread, in whole pages; one part if each would be below a page."""
    if threads == 1 or size < _PAGE * threads:
        return [(address, size)]
    part = -(-size // threads // _PAGE) * _PAGE
    return [(start, min(part, address + size - start)) for start in range(address, address + size, part)]


def _touch(address: int, size: int) -> None:
    """Make the system map the pages, through a C function, so that threads run in parallel."""
    ctypes.memset(address, 0, size)


def _check_node(numa_node: int) -> None:
    if not isinstance(numa_node, int) or isinstance(numa_node, bool) or numa_node < 0:
        raise RequestError(f"numa_node must be the number of a node, or None, not {numa_node!r}")
    if sys.platform != "linux" or os.uname().machine not in _MBIND:
        raise UnsupportedError("numa_node is not supported on this system: memory cannot be bound to a node")
    known = sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))
    if known and numa_node not in known:
        raise RequestError(f"this machine has no NUMA node {numa_node}; it has {', '.join(map(str, known))}")


def _bind(address: int, size: int, numa_node: int) -> None:
    words = numa_node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[numa_node // 64] = 1 << numa_node % 64
    call = ctypes.CDLL(None, use_errno=True).syscall
    number = _MBIND[os.uname().machine]
    failed = call(
        ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_ulong(size), ctypes.c_int(_BIND), mask,
        ctypes.c_ulong(words * 64 + 1), ctypes.c_uint(0),
    )  # fmt: skip
    if failed:
        code = ctypes.get_errno()
        raise UnsupportedError(f"memory cannot be bound to NUMA node {numa_node}: {os.strerror(code)}")
