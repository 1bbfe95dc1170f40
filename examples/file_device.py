"""A device whose memory is a file.

This file has everything that makes it a device for Allotment, in Python: plain memory, virtual memory, the amount of
free memory, and copies. It has no streams: an operation is done when its call returns.

The file is sparse and temporary. A piece of it that is in use is mapped into this process, so the addresses are real,
and data that programs write there can be read, in memory and in the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
from dataclasses import dataclass

from allotment import Backend
from allotment.errors import AddressError, UnsupportedError

PAGE = mmap.ALLOCATIONGRANULARITY
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
NO_ACCESS = 0
MAP_FIXED = 0x10
NOWHERE = ctypes.c_void_p(-1).value


class FileDevice(Backend):
    """`capacity` bytes of device memory, kept in a temporary file in `directory`."""

    def __init__(self, capacity: int, directory: str | None = None, index: int = 0) -> None:
        super().__init__(name="file", index=index, host=True)
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - open as long as the device
        self._file.truncate(capacity)
        self._space = FileSpace(capacity)
        self._segments: dict[int, Piece] = {}  # address -> its piece of the file
        self._ranges: dict[int, int] = {}  # address -> size
        self._chunks: dict[int, Piece] = {}  # handle -> its piece of the file
        self._mappings: dict[int, Piece] = {}  # address -> the piece that is mapped there
        self._last_chunk = 0
        # The methods below are called from any thread; these change several tables at once.
        self._lock = threading.Lock()

    def close(self) -> None:
        """Return everything to the system, once no allocator uses the device any more."""
        with self._lock:
            while self._segments:
                address, piece = self._segments.popitem()
                unmap_memory(address, piece.size)
            while self._ranges:
                unmap_memory(*self._ranges.popitem())
            self._mappings.clear()
            self._chunks.clear()
            self._file.close()

    # Plain memory. These two methods alone would make a device.

    def allocate(self, size: int, stream: int) -> int:
        with self._lock:
            piece = self._space.take(size)  # raises MemoryError: the allocator then releases its cache and retries
            try:
                address = map_memory(piece.size, READ_WRITE, mmap.MAP_SHARED, self._file.fileno(), piece.offset)
            except BaseException:
                self._space.give_back(piece)  # a failed call has changed nothing
                raise
            self._segments[address] = piece
            return address

    def free(self, address: int, size: int) -> None:
        with self._lock:
            piece = self._segments.get(address)
            if piece is None:
                raise AddressError(f"no segment starts at {address:#x}", address)
            unmap_memory(address, piece.size)
            del self._segments[address]
            self._space.give_back(piece)

    def memory_info(self) -> tuple[int, int]:
        with self._lock:
            return self._space.free_bytes, self._space.capacity

    def copy(
        self, destination: int, source: int, size: int, destination_device: int, source_device: int, stream: int
    ) -> None:
        if {destination_device, source_device} != {self.index}:
            raise UnsupportedError(f"cannot copy from device {source_device} to device {destination_device}")
        ctypes.memmove(destination, source, size)

    # Virtual memory. A range is a run of inaccessible addresses, a chunk is a piece of the file, and a mapping puts a
    # chunk at some of those addresses.

    def granularity(self) -> int:
        return PAGE

    def range_reserve(self, size: int, stream: int) -> int:
        address = map_memory(size, NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with self._lock:
            self._ranges[address] = size
        return address

    def range_release(self, address: int, size: int) -> None:
        with self._lock:
            if self._ranges.get(address) != size:
                raise AddressError(f"no range of {size} bytes starts at {address:#x}", address)
            unmap_memory(address, size)
            del self._ranges[address]

    def chunk_create(self, size: int) -> int:
        with self._lock:
            piece = self._space.take(size)
            self._last_chunk += 1
            self._chunks[self._last_chunk] = piece
            return self._last_chunk

    def chunk_release(self, chunk: int, size: int) -> None:
        with self._lock:
            piece = self._chunk(chunk)
            del self._chunks[chunk]
            piece.is_released = True
            self._reclaim(piece)

    def map(self, address: int, size: int, chunk: int) -> None:
        with self._lock:
            piece = self._chunk(chunk)
            if size != piece.size:
                raise AddressError(f"chunk {chunk} has {piece.size} bytes and is mapped whole or not at all", address)
            if not any(start <= address and address + size <= start + length for start, length in self._ranges.items()):
                raise AddressError(f"{address:#x} is not in a reserved range", address)
            if any(start < address + size and address < start + other.size for start, other in self._mappings.items()):
                raise AddressError(f"something is mapped at {address:#x}", address)
            map_memory(size, NO_ACCESS, mmap.MAP_SHARED | MAP_FIXED, self._file.fileno(), piece.offset, address)
            self._mappings[address] = piece
            piece.mappings += 1

    def unmap(self, address: int, size: int) -> None:
        with self._lock:
            piece = self._mapping(address, size)
            # Mapping nothing over it keeps the addresses reserved.
            map_memory(size, NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address)
            del self._mappings[address]
            piece.mappings -= 1
            self._reclaim(piece)

    def set_access(self, address: int, size: int, device: int) -> None:
        if device != self.index:
            raise UnsupportedError(f"device {device} cannot touch the memory of a file device")
        with self._lock:
            # The allocator may set access for several neighbours at once.
            end = address + size
            while address < end:
                piece = self._mapping(address)
                protect_memory(address, piece.size, READ_WRITE)
                address += piece.size

    def _chunk(self, chunk: int) -> Piece:
        if chunk not in self._chunks:
            raise AddressError(f"there is no chunk {chunk}", chunk)
        return self._chunks[chunk]

    def _mapping(self, address: int, size: int | None = None) -> Piece:
        piece = self._mappings.get(address)
        if piece is None or size not in (None, piece.size):
            raise AddressError(f"no chunk is mapped at {address:#x}", address)
        return piece

    def _reclaim(self, piece: Piece) -> None:
        if piece.is_released and piece.mappings == 0:
            self._space.give_back(piece)


@dataclass(eq=False)
class Piece:
    """A used part of the file, by a segment or as a chunk."""

    offset: int
    size: int
    mappings: int = 0
    is_released: bool = False


class FileSpace:
    """The free parts of the file: (offset, size) in order, with a used part between any two."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free_bytes = capacity
        self._holes = [(0, capacity)]

    def take(self, size: int) -> Piece:
        size = -(-size // PAGE) * PAGE
        for at, (offset, hole) in enumerate(self._holes):
            if size <= hole:
                self._holes[at : at + 1] = [(offset + size, hole - size)] if size < hole else []
                self.free_bytes -= size
                return Piece(offset, size)
        raise MemoryError(f"no {size} bytes in a row are left in the file")

    def give_back(self, piece: Piece) -> None:
        self.free_bytes += piece.size
        holes = sorted([*self._holes, (piece.offset, piece.size)])
        self._holes = holes[:1]
        for offset, size in holes[1:]:
            before, length = self._holes[-1]
            if before + length == offset:
                self._holes[-1] = (before, length + size)
            else:
                self._holes.append((offset, size))


# Python's own mmap objects choose their addresses; a device that maps chunks must choose them itself.

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_memory(size: int, protection: int, flags: int, file: int = -1, offset: int = 0, address: int = 0) -> int:
    mapped = _libc.mmap(address or None, size, protection, flags, file, offset)
    if mapped == NOWHERE:
        raise system_error("mmap")
    assert mapped is not None
    return int(mapped)


def unmap_memory(address: int, size: int) -> None:
    if _libc.munmap(address, size) != 0:
        raise system_error("munmap")


def protect_memory(address: int, size: int, protection: int) -> None:
    if _libc.mprotect(address, size, protection) != 0:
        raise system_error("mprotect")


def system_error(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")
