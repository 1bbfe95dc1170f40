"""Other processes' memory in this one: a segment, or chunks side by side, mapped once for all blocks that lie in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._sharing import device_calls, wire
from allotment._sharing.wire import Piece
from allotment.errors import SharingError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

MappingKey = tuple[object, ...]
PIECE_MOST = 1 << 60

Fetch = Callable[[int], tuple[list[Piece], list[int]]]
"""Pieces from a number on, and the descriptors of those that travel so."""


class Mapping:
    """Where it lies, and how many blocks of this process need it."""

    __slots__ = ("base", "device", "key", "sizes", "users")

    def __init__(self, key: MappingKey, device: Device, base: int, sizes: list[int] | None) -> None:
        self.key = key
        self.device = device
        self.base = base
        self.sizes = sizes
        """Of the chunks; None: a plain segment."""
        self.users = 1


class Mappings:
    """All of this process's. One lock: mapping and unmapping are short, and never wait for another process."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()  # a finalizer that runs inside only counts down
        self.by_key: dict[MappingKey, Mapping] = {}

    def find(self, key: MappingKey) -> Mapping | None:
        """One that is there, with one user more."""
        with self.lock:
            mapping = self.by_key.get(key)
            if mapping is not None:
                mapping.users += 1
            return mapping

    def make(
        self, key: MappingKey, device: Device, plain: bool, pieces: list[Piece], descriptors: list[int]
    ) -> Mapping:
        """A new one, unless another thread was quicker. The descriptors stay the caller's."""
        with self.lock:
            known = self.find(key)
            if known is not None:
                return known
            handles = iter(descriptors)
            given = [
                (piece.way, piece.size, next(handles).to_bytes(4, "little"))
                if piece.way == device_calls.DESCRIPTOR
                else (piece.way, piece.size, piece.handle)
                for piece in pieces
            ]
            if plain:
                mapping = Mapping(key, device, device_calls.import_segment(device, given[0][2]), None)
            else:
                sizes = [size for _, size, _ in given]
                mapping = Mapping(key, device, device_calls.map_chunks(device, given), sizes)
            self.by_key[key] = mapping
            return mapping

    def drop(self, mapping: Mapping) -> None:
        """One user less; with the last it is unmapped."""
        with self.lock:
            mapping.users -= 1
            if mapping.users > 0:
                return
            self.by_key.pop(mapping.key, None)
            if mapping.sizes is None:
                device_calls.close_segment(mapping.device, mapping.base)
            else:
                device_calls.unmap_chunks(mapping.device, mapping.base, mapping.sizes)


def fetch_all(count: int, plain: bool, first: tuple[list[Piece], list[int]], fetch: Fetch) -> tuple[
    list[Piece], list[int]
]:  # fmt: skip
    """All pieces of a block, and their descriptors, which the caller closes. Raises SharingError for nonsense."""
    pieces, descriptors = first
    try:
        while len(pieces) < count:
            more, also = fetch(len(pieces))
            descriptors.extend(also)
            if not more:
                break
            pieces.extend(more)
        sizes = [piece.size for piece in pieces]
        if len(pieces) != count or (plain and count != 1) or not all(0 < size < PIECE_MOST for size in sizes):
            raise SharingError("the block's owner told nonsense about its memory", reason="altered")
    except BaseException:
        wire.close_all(descriptors)
        raise
    return pieces, descriptors
