"""Other processes' memory in this one: a segment, or adjacent chunks, mapped once for all blocks in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._sharing import device_calls, wire
from allotment._sharing.identity import family_of, identity_of
from allotment._sharing.wire import Piece
from allotment.errors import SharingError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

MappingKey = tuple[object, ...]
PIECE_MOST = 1 << 60

Fetch = Callable[[int], tuple[list[Piece], list[int]]]
"""Returns pieces from a number on, and the descriptors of those that have one."""


def place_of(device: Device) -> tuple[object, ...]:
    """Return what identifies a device as a place: objects of one device are the same place, where that is known."""
    return (id(device),) if family_of(device) == "other" else (device.family, identity_of(device))


class Mapping:
    """The address of a mapping, and how many blocks of this process need it."""

    __slots__ = ("base", "device", "key", "sizes", "users")

    def __init__(self, key: MappingKey, device: Device, base: int, sizes: list[int] | None) -> None:
        self.key = key
        self.device = device
        self.base = base
        self.sizes = sizes
        """Of the chunks; None: a plain segment."""
        self.users = 1


class Mappings:
    """All mappings of this process. One lock: mapping is short, and never waits for another process."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()  # a finalizer that runs inside only decrements counts
        self.by_key: dict[MappingKey, Mapping] = {}
        self.peers: WeakKeyDictionary[Device, list[int]] = WeakKeyDictionary()
        """Indices of the devices that have access to a device's memory."""

    def peers_of(self, device: Device) -> list[int]:
        """Return the peers of all objects of that device: another allocator of this process may have enabled them."""
        place = place_of(device)
        found = [peer for one, peers in self.peers.items() if place_of(one) == place for peer in peers]
        return list(dict.fromkeys(found))

    def reach_peer(self, device: Device, peer: int) -> None:
        """Give another device access to everything mapped on this one, now and later. Raises DeviceError."""
        with self.lock:
            if peer not in self.peers_of(device):
                place = place_of(device)
                for mapping in self.by_key.values():
                    if mapping.sizes is not None and place_of(mapping.device) == place:
                        device_calls.open_to_peer(mapping.device, mapping.base, sum(mapping.sizes), peer)
            if peer not in self.peers.setdefault(device, []):
                self.peers[device].append(peer)

    def find(self, key: MappingKey) -> Mapping | None:
        """Return an existing mapping, with one more user."""
        with self.lock:
            mapping = self.by_key.get(key)
            if mapping is not None:
                mapping.users += 1
            return mapping

    def make(
        self, key: MappingKey, device: Device, plain: bool, pieces: list[Piece], descriptors: list[int]
    ) -> Mapping:
        """Create a mapping, unless another thread was faster. The caller keeps the descriptors."""
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
                base = device_calls.map_chunks(device, given, self.peers_of(device))
                mapping = Mapping(key, device, base, sizes)
            self.by_key[key] = mapping
            return mapping

    def drop(self, mapping: Mapping) -> None:
        """Remove a user; the last one unmaps it."""
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
    """Fetch all pieces of a block, and their descriptors, which the caller closes. Raises SharingError if invalid."""
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
            raise SharingError("the block's owner sent invalid facts about its memory", reason="altered")
    except BaseException:
        wire.close_all(descriptors)
        raise
    return pieces, descriptors
