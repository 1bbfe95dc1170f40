"""Opens other processes' blocks, and closes them.

    open_block ──> link to the owner ──> mapping ──> Opened, which a Buffer has for its allocator
                     one per owner        one for all blocks in a segment

A block counts as open once, however often this process has opened it. When its last buffer is closed, a thread waits
for the streams that used it; then its memory is unmapped, and then the owner is notified.

Finalizers of buffers may run anywhere, also in the middle of this file, so they take no lock: a thread closes
everything. A second thread waits for streams, so that a busy one does not delay the others.

An interrupt between a request and its reply would leave the reply to the next request. So the main thread, which
signals interrupt, never uses a link itself (`uninterrupted`), and an `Opened` that nobody keeps closes itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from allotment import _logs
from allotment._devices import open_device
from allotment._devices.families import BY_NAME
from allotment._sharing import device_calls, ordering, owner, wire
from allotment._sharing.handle import Facts, SharedHandle, facts_of
from allotment._sharing.identity import boot_id, family_of, identity_of, process_token, user_id
from allotment._sharing.mapping import Mapping, Mappings, fetch_all, place_of
from allotment._sharing.pickling import checked_hold
from allotment._sharing.torch_form import TorchHandle
from allotment._sharing.uninterrupted import uninterrupted
from allotment._sharing.wire import Answer, Ask, Reply, Request
from allotment.errors import AddressError, AllotmentError, DeviceError, RequestError, SharingError, UnsupportedError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

_REPLY_SECONDS = 30.0
BlockKey = tuple[int, int, int]


def gone(facts: Facts) -> SharingError:
    return SharingError(
        f"process {facts.process}, which has the block, is gone or out of reach from here", reason="owner_gone"
    )


# --- the link to an owner ----------------------------------------------------------------------------------


class Link:
    """A connection to one owner, for as long as this process has one of its blocks open."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.lock = threading.Lock()
        self.leases: dict[BlockKey, Lease] = {}
        self.connection: socket.socket | None = None
        self.watch: int | None = None

    def connect(self) -> None:
        """Raises SharingError if the owner is gone, or another user's; OSError without a free descriptor."""
        if self.connection is not None:
            return
        connection = wire.packet_socket()
        try:
            connection.connect(wire.address_of(self.facts.process, self.facts.token))
            _, user = wire.peer_of(connection)
            if user != user_id():
                raise other_user(user)
            self.watch = wire.watch_peer(connection)
        except OSError as error:
            connection.close()
            if error.errno in wire.SHORTAGES:
                raise
            raise gone(self.facts) from error
        except BaseException:
            connection.close()
            raise
        self.connection = connection

    def ask(self, request: Request) -> Reply:
        """Return the owner's reply. Raises SharingError if it is gone or replies nonsense; OSError without memory."""
        assert self.connection is not None
        try:
            with contextlib.suppress(ConnectionError):  # it may have said why before it hung up
                self.send(request)
            self.wait(select.POLLIN)
            data, descriptors = wire.receive(self.connection)
        except OSError as error:
            if error.errno in wire.SHORTAGES:
                raise
            raise gone(self.facts) from error
        if not data:
            raise gone(self.facts)
        try:
            return Reply.read(data, descriptors)
        except ValueError as error:
            wire.close_all(descriptors)
            raise SharingError(f"the block's owner sent an invalid reply: {error}", reason="altered") from None

    def send(self, request: Request) -> None:
        """Send a request, even if the owner is slow to read. Raises OSError, and SharingError if it is gone."""
        assert self.connection is not None
        while True:
            try:
                return wire.send(self.connection, request.pack())
            except BlockingIOError:
                self.wait(select.POLLOUT)

    def wait(self, event: int) -> None:
        """Wait until there is a reply, or room to send, or the owner is gone.

        There is no time limit: the owner may have to wait for its stream.
        """
        assert self.connection is not None
        poll = select.poll()
        poll.register(self.connection, event)
        if self.watch is not None:
            poll.register(self.watch, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(1000 * _REPLY_SECONDS)]
            if self.connection.fileno() in ready:
                return
            if ready or self.watch is None:
                raise gone(self.facts)

    def disconnect(self) -> None:
        connection, self.connection = self.connection, None
        watch, self.watch = self.watch, None
        if connection is not None:
            connection.close()
        if watch is not None:
            os.close(watch)


class Lease:
    """A block of another process that is open here, through one or several buffers."""

    __slots__ = ("address", "key", "link", "mapping", "users")

    def __init__(self, link: Link, key: BlockKey, mapping: Mapping, address: int) -> None:
        self.link = link
        self.key = key
        self.mapping = mapping
        self.address = address
        self.users = 0


def other_user(user: int) -> SharingError:
    return SharingError(f"the block is user {user}'s, and this process is user {user_id()}'s", reason="other_user")


# --- all of them -------------------------------------------------------------------------------------------


class Importer:
    """Everything of other processes that this process has open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.links: dict[bytes, Link] = {}
        self.mappings = Mappings()
        self.devices: dict[tuple[str, bytes], Device] = {}
        self.closing: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.waiting: SimpleQueue[tuple[Device, list[int], Callable[[], None]]] = SimpleQueue()
        self.has_threads = False

    def device_for(self, facts: Facts, given: Device | None) -> Device:
        """Return the device here that is the owner's. Raises SharingError if there is none."""
        if given is not None:
            if family_of(given) != facts.family or identity_of(given) != facts.identity:
                raise other_device(facts, given.name)
            return given
        with self.lock:
            known = self.devices.get((facts.family, facts.identity))
        if known is None:
            known = find_device(facts)
            with self.lock:
                known = self.devices.setdefault((facts.family, facts.identity), known)
        return known

    def link_to(self, facts: Facts) -> Link:
        with self.lock:
            return self.links.setdefault(facts.token, Link(facts))

    def open(
        self, handle: SharedHandle, number: int, stream: int, device: Device
    ) -> tuple[Opened, Reply, ordering.Pipe | None]:
        """Open a block; return also the owner's reply about the order, and the pipe that came with it.

        `number` is that of the send that this receives, or 0.
        """
        lease, reply = self.lease(facts_of(handle), number, device)
        pipe = ordering.Pipe(reply.descriptors[0]) if reply.descriptors else None
        close, send_on = partial(self.close, lease), partial(self.send_on, lease)
        try:
            return Opened(device, lease.address, reply.size, stream, close, handle, send_on), reply, pipe
        except BaseException:
            close()
            raise

    def lease(self, facts: Facts, number: int, device: Device) -> tuple[Lease, Reply]:
        """Return a lease with one more user, and the owner's reply. The caller owns its descriptors."""
        key = (facts.allocator, facts.block, facts.generation)
        while True:
            link = self.link_to(facts)
            with link.lock:
                if self.links.get(facts.token) is not link:
                    continue  # it was closed just now
                try:
                    return self.lease_on(link, key, number, device)
                finally:
                    self.leave(link)

    def lease_on(self, link: Link, key: BlockKey, number: int, device: Device) -> tuple[Lease, Reply]:
        link.connect()
        lease = link.leases.get(key)
        allocator, block, generation = key
        reply = link.ask(Request(Ask.OPEN if lease is None else Ask.OPEN_AGAIN, block, generation, allocator, number))
        if reply.answer is not Answer.OK:
            wire.close_all(reply.descriptors)
            raise refused(link.facts, reply)
        piece_descriptors = sum(piece.way == device_calls.DESCRIPTOR for piece in reply.pieces)
        of_pieces, of_order = reply.descriptors[:piece_descriptors], reply.descriptors[piece_descriptors:]
        reply.descriptors = of_order
        if lease is None:
            try:
                lease = self.map(link, key, device, reply, of_pieces)
            except BaseException:
                wire.close_all(of_order)
                self.tell_closed(link, key)
                raise
            link.leases[key] = lease
        else:
            wire.close_all(of_pieces)
        lease.users += 1
        return lease, reply

    def map(self, link: Link, key: BlockKey, device: Device, reply: Reply, descriptors: list[int]) -> Lease:
        allocator, block, generation = key
        mapping_key = (link.facts.token, allocator, reply.base, reply.count, reply.plain, *place_of(device))

        def fetch(first: int) -> tuple[list[wire.Piece], list[int]]:
            more = link.ask(Request(Ask.MORE, block, generation, allocator, first))
            if more.answer is not Answer.OK:
                raise refused(link.facts, more)
            return more.pieces, more.descriptors

        mapping = self.mappings.find(mapping_key)
        if mapping is None:
            pieces, descriptors = fetch_all(reply.count, reply.plain, (reply.pieces, descriptors), fetch)
            try:
                if reply.offset + reply.size > sum(piece.size for piece in pieces):
                    raise SharingError("the block's owner sent invalid facts about its place", reason="altered")
                mapping = self.mappings.make(mapping_key, device, reply.plain, pieces, descriptors)
            finally:
                wire.close_all(descriptors)
            way = wire.way_of(pieces[0], reply.count, reply.plain)
        else:
            wire.close_all(descriptors)
            way = "a mapping that is there already"
        address = mapping.base + reply.offset
        _logs.opened(device.name, address, reply.size, way, link.facts.process)
        return Lease(link, key, mapping, address)

    def send_on(self, lease: Lease, seconds: float) -> int:
        """Make the owner hold a block that is open here for another process; return the number of that send."""
        allocator, block, generation = lease.key
        with lease.link.lock:
            reply = lease.link.ask(Request(Ask.SEND_ON, block, generation, allocator, wire.milliseconds(seconds)))
        wire.close_all(reply.descriptors)
        if reply.answer is not Answer.OK:
            raise refused(lease.link.facts, reply)
        return reply.count

    # --- closing ---

    def close(self, lease: Lease) -> None:
        """Remove one buffer."""
        link = lease.link
        with link.lock:
            lease.users -= 1
            if lease.users > 0:
                return
            del link.leases[lease.key]
            try:
                self.mappings.drop(lease.mapping)
            finally:
                self.tell_closed(link, lease.key)
                self.leave(link)

    def tell_closed(self, link: Link, key: BlockKey) -> None:
        allocator, block, generation = key
        if link.connection is not None:
            with contextlib.suppress(OSError, SharingError):  # the owner is gone, and its leases with it
                link.send(Request(Ask.CLOSE, block, generation, allocator))

    def leave(self, link: Link) -> None:
        """Close a link through which nothing is open. pre: its lock"""
        if not link.leases:
            link.disconnect()
            with self.lock:
                if self.links.get(link.facts.token) is link:
                    del self.links[link.facts.token]

    def start(self) -> None:
        with self.lock:
            if not self.has_threads:
                self.has_threads = True
                for name, work in (("closing", self.close_all), ("waiting", self.wait_for_all)):
                    threading.Thread(target=work, name=f"allotment {name}", daemon=True).start()

    def close_all(self) -> None:
        while True:
            _run(self.closing.get())

    def wait_for_all(self) -> None:
        while True:
            device, events, close = self.waiting.get()
            for event in events:
                with contextlib.suppress(DeviceError):
                    device_calls.wait_for_event(device, event)
                    device_calls.destroy_event(device, event)
            self.closing.put(close)


def _run(close: Callable[[], None]) -> None:
    """Run a close; report its failure, since nobody waits for it."""
    try:
        close()
    except Exception as error:
        facts = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(facts))


_importer = Importer()


def _in_child() -> None:
    """In a child of fork: it has nothing open of what its parent has."""
    global _importer
    left, _importer = _importer, Importer()
    _importer.mappings.peers = left.mappings.peers
    for link in left.links.values():
        link.disconnect()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def other_device(facts: Facts, here: str) -> SharingError:
    return SharingError(f"the block is on {facts.name} of its owner, which is not {here}", reason="other_device")


def find_device(facts: Facts) -> Device:
    """Return a device of this process that is the owner's."""
    family = BY_NAME.get(facts.family)
    if family is None:
        raise SharingError(
            f"the block is on {facts.name}, a device that this process does not know; pass a Stream of it",
            reason="other_device",
        )
    for seen, name in enumerate(family.candidates(facts.name)):
        try:
            device = open_device(name, shareable=True)
        except (AllotmentError, ValueError) as error:
            raise other_device(facts, f"a {family.name} device that this process sees ({seen} seen)") from error
        if identity_of(device) == facts.identity:
            return device
    raise other_device(facts, f"a {family.name} device that this process sees")


def refused(facts: Facts, reply: Reply) -> AllotmentError:
    if reply.answer is Answer.EXPIRED:
        return SharingError(
            f"process {facts.process} no longer keeps the block: its handle was not opened in time, or was closed;"
            " share it again, with a longer hold",
            reason="expired",
        )
    if reply.answer is Answer.OTHER_USER:
        return other_user(facts.user)
    return DeviceError(f"process {facts.process} could not hand the block over: {reply.text}", operation="share")


# --- what a buffer has for its allocator -------------------------------------------------------------------


class Closing:
    """A close that runs once, however often it is queued: an interrupt may come before it is noted as queued."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._left = [close]

    def __call__(self) -> None:
        """pre: on the thread that closes"""
        while self._left:
            self._left.pop()()


class Opened:
    """Another process's block, opened once: takes an allocator's place for a Buffer of it."""

    def __init__(
        self,
        device: Device,
        address: int,
        size: int,
        stream: int,
        close: Callable[[], None],
        handle: SharedHandle | None = None,
        send_on: Callable[[float], int] | None = None,
    ) -> None:
        self.device = device
        self._handle = handle
        self._send_on = send_on
        self.address = address
        self.size = size
        self._streams = {stream}
        self._importer = _importer
        self._importer.start()
        self._close: Closing | None = Closing(close)

    def __del__(self) -> None:
        """Close it if no buffer has: an interrupt may come before there is one, or while it is being freed."""
        if self._close is not None:
            self.free(self.address)

    def share(self, block: object, *, hold: float = 0.0) -> SharedHandle:
        """Return the handle it was opened by: other processes open it at its owner, while it is open here."""
        if self._handle is None:
            raise UnsupportedError(f"{self!r} was not opened by a handle of Allotment", operation="share")
        return self._handle

    def _send_block(self, block: object, hold: float) -> tuple[SharedHandle, int]:
        """Return the handle, and the number of a hold for one receiver, which may open it after it was closed here."""
        handle = self.share(block)
        assert self._send_on is not None
        return handle, uninterrupted(partial(self._send_on, checked_hold(hold)))

    def record_stream(self, block: int, stream: Any) -> None:
        """Record that work on `stream` uses the block: the owner gets it back when that work is done."""
        if self._close is None:
            raise AddressError(f"{block:#x} was closed", block)
        handle = getattr(stream, "handle", stream)
        if getattr(stream, "device", self.device) is not self.device:
            raise RequestError(f"{stream!r} is a stream of another device than {self.device.name}")
        self._streams.add(handle)

    def free(self, address: int) -> None:
        """Close it, when the streams that used it are done."""
        if self._close is None:
            raise AddressError(f"{address:#x} was closed already", address)
        events = self._events()
        if events:
            self._importer.waiting.put((self.device, events, self._close))
        else:
            self._importer.closing.put(self._close)
        self._close = None

    def _events(self) -> list[int]:
        """Return events of streams that are not done yet."""
        events: list[int] = []
        if not device_calls.has_events(self.device):
            return events
        for stream in self._streams:
            try:
                if device_calls.is_captured(self.device, stream) or device_calls.is_idle(self.device, stream):
                    continue
                event = device_calls.create_event(self.device)
                events.append(event)
                device_calls.record_event(self.device, event, stream)
            except DeviceError:
                continue  # a failed device has nothing left to wait for
        return events

    def __repr__(self) -> str:
        return f"<shared block of {self.size} bytes at {self.address:#x} on {self.device.name}>"


def reach_peer(device: Device, peer: int) -> None:
    """Give the device of index `peer` access to other processes' memory open on a device. Raises DeviceError."""
    _importer.mappings.reach_peer(device, peer)


def open_block(handle: SharedHandle, number: int, stream: int, device: Device | None) -> tuple[Opened, int, int]:
    """Open another process's block; return (object that frees it, address, size).

    `number` is that of the send that this receives, or 0. Raises SharingError, DeviceError.
    """
    facts = facts_of(handle)
    wire.require_sockets()
    if facts.boot != boot_id():
        raise SharingError("the handle is of another machine, or from before this one was started", reason="other_boot")
    if facts.user != user_id():
        raise other_user(facts.user)
    if facts.token == process_token():
        return open_own(handle, number, stream, device)
    device = _importer.device_for(facts, device)
    opened, reply, pipe = uninterrupted(partial(_importer.open, handle, number, stream, device))
    try:
        ordering.wait(device, stream, reply.events, pipe, on_stream=is_on_stream(facts, stream))
    except BaseException:
        opened.free(opened.address)
        raise
    return opened, opened.address, opened.size


def is_on_stream(facts: Facts, stream: int) -> bool:
    """Whether a stream waits for the owner's work. On host memory without a stream, the caller waits."""
    return stream != 0 or facts.family != "host"


def open_own(handle: SharedHandle, number: int, stream: int, device: Device | None) -> tuple[Opened, int, int]:
    """Open a block of this process, which needs no mapping."""
    facts = facts_of(handle)

    def open_here() -> tuple[Opened, ordering.Order, ordering.Pipe | None]:
        entry, shared, close, send_on = owner.lease_here(facts, number)
        try:
            address = shared.base + shared.offset
            opened = Opened(entry.allocator.device, address, shared.size, stream, close, handle, send_on)
        except BaseException:
            close()
            raise
        return opened, entry.order, entry.order.waiting_end()

    try:
        opened, order, pipe = uninterrupted(open_here)
    except KeyError:
        raise refused(facts, Reply(Answer.EXPIRED)) from None
    try:
        if device is not None and device is not opened.device:
            raise other_device(facts, device.name)
        _logs.opened(opened.device.name, opened.address, opened.size, "its own address", facts.process)
        ordering.wait_here(order, stream, pipe, on_stream=is_on_stream(facts, stream))
    except BaseException:
        opened.free(opened.address)
        raise
    return opened, opened.address, opened.size


def open_foreign(
    data: bytes, handle: TorchHandle, descriptors: list[int], offset: int, size: int, device: Device
) -> tuple[Opened, int]:
    """Map memory exported by other software, which holds it; return (object that frees it, address).

    The caller keeps the descriptors.
    """
    plain = handle.page == 0
    way = handle.way or (device_calls.DESCRIPTOR if len(handle.handles[0]) == 4 else device_calls.FABRIC)
    pieces = [wire.Piece(way, handle.page or 1, h if way != device_calls.DESCRIPTOR else b"") for h in handle.handles]
    importer = _importer
    # A descriptor's number may be another file's later, but not while it is mapped here from the same process.
    key = ("foreign", data, *place_of(device))
    mapping = importer.mappings.find(key) or importer.mappings.make(key, device, plain, pieces, descriptors)
    address = mapping.base + offset
    in_words = f"PyTorch's form: {wire.way_of(pieces[0], len(pieces), plain)}"
    _logs.opened(device.name, address, size, in_words, handle.process)

    def close() -> None:
        importer.mappings.drop(mapping)

    return Opened(device, address, size, 0, close), address
