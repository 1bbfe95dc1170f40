"""Leases: which of this process's blocks others have open, until they close them or die.

    share ──> entry: a block, held for a while ──────────────────────────── nobody opened it: let go
                └─ open ──> lease of a process ── close, or its end ──────> the last one: let go

One thread a process listens, started with the first share. A process that opens a block is connected to it, and
watched: what it had open is let go when it is gone, however it went, and not before, since its device may still work.
A connection that merely breaks proves nothing.

Entries are there while somebody has or may get the block; its allocator lives as long. The engine is never called with
the lock held, and nothing is waited for on the thread, so an importer that does not read cannot hold anybody up: it is
disconnected.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import itertools
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._sharing import device_calls, ordering, wire
from allotment._sharing.handle import Facts, SharedHandle, make_handle
from allotment._sharing.identity import boot_id, family_of, identity_of, process_token, user_id
from allotment._sharing.ordering import Order, OrderKind
from allotment._sharing.pickling import checked_hold
from allotment._sharing.wire import Answer, Ask, Piece, Reply, Request
from allotment.errors import AllotmentError, RequestError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

_POLL_SECONDS = 0.002
_BACKLOG = 128


class SharedBlock(NamedTuple):
    """What an allocator tells about a block: `pieces` are (chunk, size) each, and a plain segment's chunk is 0."""

    generation: int
    size: int
    offset: int
    base: int
    pieces: list[tuple[int, int]]
    streams: list[int]


class Lender(Protocol):
    """An allocator whose blocks can be shared."""

    @property
    def device(self) -> Device: ...
    def _share_block(self, block: int, keep: bool) -> SharedBlock: ...
    def _lease_block(self, block: int, generation: int) -> SharedBlock: ...
    def _end_shares(self, block: int, generation: int, leases: int, keeps: int) -> None: ...
    def _end_all_shares(self) -> None: ...


Key = tuple[int, int, int]


@dataclass(eq=False)
class Entry:
    """A block that somebody has or may get."""

    lender: Lender | None  # None: it is over
    key: Key
    order: Order
    keeps: int = 0
    deadline: float = 0.0
    leases: int = 0

    @property
    def allocator(self) -> Lender:
        if self.lender is None:
            raise KeyError(self.key)
        return self.lender

    @property
    def block(self) -> int:
        return self.key[1]

    @property
    def generation(self) -> int:
        return self.key[2]


@dataclass(eq=False)
class Client:
    """A process that opens blocks."""

    connection: socket.socket | None
    watch: int | None
    leases: dict[Key, tuple[Entry, SharedBlock]] = field(default_factory=dict)
    waiting: tuple[Request, Entry] | None = None


class Owner:
    """All of this process's entries, and the thread that serves them."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.entries: dict[Key, Entry] = {}
        self.numbers: WeakKeyDictionary[Lender, int] = WeakKeyDictionary()
        self.numbered = itertools.count(1)
        self.deadlines: list[tuple[float, int, Entry]] = []
        self.drawn = itertools.count()
        self.thread: threading.Thread | None = None
        self.selector: selectors.BaseSelector | None = None
        self.listener: socket.socket | None = None
        self.waker = -1
        self.clients: set[Client] = set()
        self.closing: deque[Entry] = deque()
        self.is_stopping = False

    # --- sharing, on any thread ---

    def share(self, lender: Lender, block: int, hold: float) -> SharedHandle:
        wire.require_sockets()
        self.start()
        shared = lender._share_block(block, True)
        number = self.number_of(lender)
        entry = self.keep(lender, (number, block, shared.generation), time.monotonic() + hold)
        try:
            order = ordering.record(lender.device, shared.streams, entry.order)
        except BaseException:
            with self.lock:
                entry.keeps -= 1
            self.settle(entry, 0, 1)
            raise
        with self.lock:
            replaced, entry.order = entry.order, order
            surplus = max(entry.keeps - 1, 0)  # those of earlier shares, which this one renews
            entry.keeps -= surplus
        if replaced.pipe is not None:
            replaced.pipe.close()
        self.settle(entry, 0, surplus)
        return make_handle(Facts(
            family_of(lender.device), user_id(), os.getpid(), boot_id(), process_token(), identity_of(lender.device),
            number, block, shared.generation, shared.size, lender.device.name,
        ))  # fmt: skip

    def keep(self, lender: Lender, key: Key, deadline: float) -> Entry:
        """The entry of a block, with one keep more."""
        with self.lock:
            entry = self.entries.get(key)
            if entry is None:
                entry = self.entries[key] = Entry(lender, key, Order(lender.device))
            entry.deadline = max(entry.deadline, deadline) if entry.keeps else deadline
            entry.keeps += 1
            if math.isfinite(entry.deadline):
                self.forget_old_deadlines()
                heapq.heappush(self.deadlines, (entry.deadline, next(self.drawn), entry))
            is_first = bool(self.deadlines) and self.deadlines[0][2] is entry
        if is_first:
            self.wake()
        return entry

    def forget_old_deadlines(self) -> None:
        """Those of entries that are over or were renewed, once they are most of all. pre: locked"""
        if len(self.deadlines) > 2 * len(self.entries) + 64:
            self.deadlines = [item for item in self.deadlines if item[2].lender and item[2].deadline == item[0]]
            heapq.heapify(self.deadlines)

    def number_of(self, lender: Lender) -> int:
        with self.lock:
            if lender not in self.numbers:
                self.numbers[lender] = next(self.numbered)
            return self.numbers[lender]

    def end_hold(self, key: Key) -> None:
        with self.lock:
            entry = self.entries.get(key)
            keeps = self.take_keeps(entry) if entry is not None else 0
        if entry is not None:
            self.settle(entry, 0, keeps)

    def take_keeps(self, entry: Entry) -> int:
        """pre: locked"""
        keeps, entry.keeps = entry.keeps, 0
        return keeps

    def lease(self, key: Key) -> tuple[Entry, SharedBlock]:
        """One process more has a block open. Raises KeyError if it cannot be had any more."""
        with self.lock:
            entry = self.entries[key]
            if entry.keeps == 0 and entry.leases == 0:
                raise KeyError(key)
            entry.leases += 1
        try:
            return entry, entry.allocator._lease_block(entry.block, entry.generation)
        except RequestError:
            self.settle(entry, 1, 0, in_engine=False)
            raise KeyError(key) from None
        except BaseException:
            self.settle(entry, 1, 0, in_engine=False)
            raise

    def settle(self, entry: Entry, leases: int, keeps: int, *, in_engine: bool = True) -> None:
        """Leases and keeps of a block are over. pre: the keeps were taken out of the entry"""
        with self.lock:
            entry.leases -= leases
            lender = entry.lender
            is_over = lender is not None and entry.leases == 0 and entry.keeps == 0
            if is_over:
                del self.entries[entry.key]
                entry.lender = None
        if is_over:
            entry.order.end()
        if lender is not None and in_engine and (leases or keeps):
            lender._end_shares(entry.block, entry.generation, leases, keeps)

    # --- the thread ---

    def start(self) -> None:
        with self.lock:
            if self.thread is not None:
                return
            listener = wire.packet_socket()
            try:
                listener.bind(wire.address_of(os.getpid(), process_token()))
                listener.listen(_BACKLOG)
                listener.setblocking(False)
                waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except BaseException:
                listener.close()
                raise
            self.selector = selectors.DefaultSelector()
            self.listener, self.waker = listener, waker
            self.selector.register(listener, selectors.EVENT_READ, self.accept)
            self.selector.register(waker, selectors.EVENT_READ, lambda: os.eventfd_read(waker))
            self.thread = threading.Thread(target=self.serve, name="allotment sharing", daemon=True)
            self.thread.start()

    def wake(self) -> None:
        if self.waker >= 0:
            os.eventfd_write(self.waker, 1)

    def serve(self) -> None:
        assert self.selector is not None
        while not self.is_stopping:
            for key, _ in self.selector.select(self.seconds_left()):
                self.run(key.data)
            self.run(self.expire)
            self.run(self.close_ours)
            for client in [client for client in self.clients if client.waiting is not None]:
                self.run(partial(self.open_when_over, client))

    def run(self, step: Callable[[], None]) -> None:
        """A step that concerns one process or block: if it fails, the others are still served."""
        try:
            step()
        except OSError:
            pass  # of a process that is gone
        except Exception as error:
            told = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(told))

    def close_ours(self) -> None:
        """Let go what this very process had open. Finalizers cannot: they may run while the lock is held."""
        while self.closing:
            self.settle(self.closing.popleft(), 1, 0)

    def seconds_left(self) -> float | None:
        if any(client.waiting is not None for client in self.clients):
            return _POLL_SECONDS
        with self.lock:
            return max(self.deadlines[0][0] - time.monotonic(), 0.0) if self.deadlines else None

    def expire(self) -> None:
        now = time.monotonic()
        over = []
        with self.lock:
            while self.deadlines and self.deadlines[0][0] <= now:
                entry = heapq.heappop(self.deadlines)[2]
                if entry.keeps and entry.deadline <= now:
                    over.append((entry, self.take_keeps(entry)))
        for entry, keeps in over:
            self.settle(entry, 0, keeps)

    def accept(self) -> None:
        assert self.listener is not None and self.selector is not None
        connection, _ = self.listener.accept()
        process, user = wire.peer_of(connection)
        if user != user_id():
            with contextlib.suppress(OSError):
                wire.send(connection, Reply(Answer.OTHER_USER).pack())
            connection.close()
            return
        try:
            client = Client(connection, wire.watch_process(process))
        except ProcessLookupError:
            connection.close()
            return
        connection.setblocking(False)
        self.clients.add(client)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.read(client))
        if client.watch is not None:
            self.selector.register(client.watch, selectors.EVENT_READ, lambda: self.forget(client))

    def read(self, client: Client) -> None:
        connection = client.connection
        if connection is None:
            return
        try:
            data, descriptors = wire.receive(connection)
            wire.close_all(descriptors)  # nobody has a reason to send us any
            request = Request.read(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError, AllotmentError):
            request = None
        if request is None:
            self.disconnect(client)
        else:
            self.serve_request(client, request)

    def serve_request(self, client: Client, request: Request) -> None:
        if request.ask is Ask.CLOSE:
            held = client.leases.pop(request.key, None)
            if held is not None:
                self.settle(held[0], 1, 0)
            return
        try:
            if request.ask is Ask.MORE:
                self.send(client, self.pieces(client.leases[request.key], request.first))
                return
            if request.key not in client.leases:
                client.leases[request.key] = self.lease(request.key)
            entry = client.leases[request.key][0]
            client.waiting = request, entry
            self.open_when_over(client)
        except KeyError:
            self.send(client, Reply(Answer.EXPIRED))
        except Exception as error:  # a device's, or the host's without memory
            self.refuse(client, request, error)

    def refuse(self, client: Client, request: Request, error: Exception) -> None:
        client.waiting = None
        held = client.leases.pop(request.key, None)
        if held is not None:
            self.settle(held[0], 1, 0)
        self.send(client, Reply(Answer.FAILED, text=f"{type(error).__name__}: {error}"))

    def open_when_over(self, client: Client) -> None:
        """Reply to who wants to open a block, unless the owner's work has to be waited for on this side."""
        assert client.waiting is not None
        request, entry = client.waiting
        try:
            with self.lock:
                order = entry.order
                pipe = os.dup(order.pipe.reader) if order.pipe is not None and order.pipe.reader >= 0 else None
            if not order.is_over():
                return
            client.waiting = None
            try:
                held = client.leases[request.key]
                reply = Reply(Answer.OK) if request.ask is Ask.OPEN_AGAIN else self.pieces(held, 0)
                shared = held[1]
                reply.plain = shared.pieces[0][0] == 0
                reply.size, reply.offset, reply.base = shared.size, shared.offset, shared.base
                reply.count = len(shared.pieces)
                reply.events = order.handles()
                reply.order = order.kind if order.kind is not OrderKind.PIPE or pipe is not None else OrderKind.NOTHING
                reply.descriptors = [*reply.descriptors, *([pipe] if pipe is not None else [])]
                self.send(client, reply)
            finally:
                if pipe is not None:
                    os.close(pipe)
        except Exception as error:
            self.refuse(client, request, error)

    def pieces(self, held: tuple[Entry, SharedBlock], first: int) -> Reply:
        entry, shared = held
        device = entry.allocator.device
        reply = Reply(Answer.OK)
        for chunk, size in shared.pieces[first : first + wire.PIECES_AT_ONCE]:
            if chunk == 0:
                handle = device_calls.export_segment(device, shared.base)
                way = device_calls.DESCRIPTOR if len(handle) == 4 else device_calls.FABRIC
            else:
                way, handle = device_calls.export_chunk(device, chunk)
            if way == device_calls.DESCRIPTOR:
                reply.descriptors.append(int.from_bytes(handle, "little"))
                handle = b""
            reply.pieces.append(Piece(way, size, handle))
        return reply

    def send(self, client: Client, reply: Reply) -> None:
        if client.connection is None:
            return
        try:
            wire.send(client.connection, reply.pack(), reply.descriptors)
        except OSError:
            self.disconnect(client)

    def disconnect(self, client: Client) -> None:
        """Talk to a process no more. What it has open it has until it is gone, where that can be seen."""
        if client.connection is not None:
            assert self.selector is not None
            self.selector.unregister(client.connection)
            client.connection.close()
            client.connection = None
            client.waiting = None
        if client.watch is None or not client.leases:
            self.forget(client)

    def forget(self, client: Client) -> None:
        """A process is gone."""
        assert self.selector is not None
        if client.connection is not None:
            self.selector.unregister(client.connection)
            client.connection.close()
            client.connection = None
        if client.watch is not None:
            self.selector.unregister(client.watch)
            os.close(client.watch)
            client.watch = None
        self.clients.discard(client)
        client.waiting = None
        leases, client.leases = client.leases, {}
        for entry, _ in leases.values():
            self.settle(entry, 1, 0)

    # --- its end ---

    def stop(self) -> None:
        """At exit: the thread does nothing any more."""
        self.is_stopping = True
        if self.thread is not None and self.thread.is_alive():
            self.wake()
            self.thread.join(5)

    def leave_parent(self) -> None:
        """In a child of fork: it has none of its parent's leases, sockets or threads."""
        closing: list[Any] = [self.listener, self.selector, *(client.connection for client in self.clients)]
        for one in closing:
            if one is not None:
                one.close()
        for descriptor in [self.waker, *(client.watch for client in self.clients)]:
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        for lender in {id(entry.lender): entry.lender for entry in self.entries.values()}.values():
            if lender is not None:
                lender._end_all_shares()


_owner = Owner()


def _in_child() -> None:
    global _owner
    left, _owner = _owner, Owner()
    ordering.forget()
    left.leave_parent()


def _at_exit() -> None:
    ordering.note_exit()
    _owner.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)


def share(lender: Lender, block: int, hold: float) -> SharedHandle:
    """A handle of a block, which is held for so many seconds even if it is freed meanwhile."""
    return _owner.share(lender, block, checked_hold(hold))


def end_hold(facts: Facts) -> None:
    """Nobody can open a handle any more who has not; nothing if the block is another process's."""
    if facts.token == process_token():
        _owner.end_hold((facts.allocator, facts.block, facts.generation))


def lease_here(facts: Facts) -> tuple[Entry, SharedBlock, Callable[[], None]]:
    """A block of this very process, opened like another's; what to call when it is closed. Raises KeyError."""
    owner = _owner
    entry, shared = owner.lease((facts.allocator, facts.block, facts.generation))

    def close() -> None:
        owner.closing.append(entry)
        owner.wake()

    return entry, shared, close
