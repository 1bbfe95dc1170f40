"""Leases: which of this process's blocks other processes have open, until they close them or die.

    share ──> hold of the handle, until its time ends or the handle is closed ──┐
    send  ──> hold of that send, until it is opened or its time ends ───────────┼──> the last one ends: block released
    open  ──> lease of a process, until it closes the block or dies ────────────┘

All of them belong to an entry, one for each block. While its block has an entry, a handle can be opened by any number
of processes. A buffer sent through a queue is received once, so receiving it ends its hold.

One thread per process listens, started with the first share. A process that opens a block is connected to it and
watched. Its leases end when it is gone, however it ended, and not before, since its device may still work. A broken
connection proves nothing.

An entry keeps the block's allocator alive. The engine is never called with the lock held, and the thread waits for
nothing, so an importer that does not read cannot block others: it is disconnected.
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
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from allotment import _logs
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

_LAST_REFERENCE = 2  # by `sys.getrefcount`, whose argument is the second one
_POLL_SECONDS = 0.002
_LONGEST_WAIT = 86_400.0
"""The system refuses a wait of more than 24 days."""
_BACKLOG = 128
_SHORTAGE_SECONDS = 0.1


class SharedBlock(NamedTuple):
    """An allocator's facts about a block: `pieces` are (chunk, size) each, and a plain segment's chunk is 0."""

    generation: int
    size: int
    offset: int
    base: int
    pieces: list[tuple[int, int]]
    streams: list[int]


class SharedBlocks(Protocol):
    """What an allocator does for blocks that are shared: its `sharing`."""

    def _share_block(self, block: int, kept: list[SharedBlock] | None) -> SharedBlock: ...
    def _lease_block(self, block: int, generation: int, leased: list[SharedBlock]) -> SharedBlock: ...
    def _end_shares(self, block: int, generation: int, leases: int, keeps: int) -> None: ...
    def _end_all_shares(self) -> None: ...


class Lender(Protocol):
    """An allocator whose blocks can be shared."""

    @property
    def device(self) -> Device: ...
    @property
    def sharing(self) -> SharedBlocks: ...
    def close(self) -> None: ...


Key = tuple[int, int, int]


@dataclass(eq=False)
class Hold:
    """A promise that a block can be opened until a deadline, for a handle or for one send."""

    entry: Entry
    number: int
    deadline: float
    is_lease: bool  # how the engine counts it


@dataclass(eq=False)
class Entry:
    """A block that another process has open or may open."""

    lender: Lender | None  # None: it has ended
    key: Key
    order: Order
    holds: dict[int, Hold] = field(default_factory=dict)
    of_handle: Hold | None = None  # the one that each `share` renews; the others are for sends
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
        self.deadlines: list[tuple[float, int, Hold]] = []
        self.drawn = itertools.count(1)
        self.sleeps_until = math.inf  # the thread, if nobody wakes it
        self.hold_count = 0
        self.thread: threading.Thread | None = None
        self.selector: selectors.BaseSelector | None = None
        self.listener: socket.socket | None = None
        self.waker = -1
        self.spare = -1
        self.listens_again = math.inf  # time, while the process is short of descriptors
        self.clients: set[Client] = set()
        self.closing: deque[Entry] = deque()
        self.is_stopping = False

    # --- sharing, on any thread ---

    def share(self, lender: Lender, block: int, seconds: float) -> SharedHandle:
        """Return a handle that can be opened for that time, and at least as long as earlier shares have promised."""
        hold, handle = self.send(lender, block, seconds)
        with self.lock:
            earlier, hold.entry.of_handle = hold.entry.of_handle, hold
            if earlier is not None and earlier.deadline > hold.deadline:
                hold.deadline = earlier.deadline
                self.add_deadline(hold)
        if earlier is not None:
            self.end_leases(hold.entry, 0, [earlier])
        return handle

    def send(self, lender: Lender, block: int, seconds: float) -> tuple[Hold, SharedHandle]:
        """Return a handle of a block, and its own hold."""
        wire.require_sockets()
        self.start()
        kept: list[SharedBlock] = []  # by the engine
        entry = hold = None
        try:
            shared = lender.sharing._share_block(block, kept)
            number = self.number_of(lender)
            key = (number, block, shared.generation)
            with self.lock:
                entry = self.entries.get(key)
                if entry is None:
                    entry = self.entries[key] = Entry(lender, key, Order(lender.device))
                hold = Hold(entry, next(self.drawn), time.monotonic() + seconds, is_lease=False)
                self.add_hold(hold)
            handle = make_handle(Facts(
                family_of(lender.device), user_id(), os.getpid(), boot_id(), process_token(),
                identity_of(lender.device), number, block, shared.generation, shared.size, lender.device.name,
            ))  # fmt: skip
            order = ordering.record(lender.device, shared.streams, entry.order)
            with self.lock:
                entry.order = order
            return hold, handle
        except BaseException:  # an interrupt too, at any of these lines
            if hold is not None and hold.number in hold.entry.holds:
                self.end_leases(hold.entry, 0, [hold])
                raise
            if kept:
                lender.sharing._end_shares(block, kept[0].generation, 0, 1)
            if entry is not None:
                self.end_leases(entry, 0)
            raise

    def send_on(self, key: Key, seconds: float) -> int:
        """Return the number of a hold for a block that a process has open and sends on. Raises KeyError if it has
        ended.

        The owner may have freed the block already, so the engine counts this hold as a lease.
        """
        entry, _ = self.lease(key)
        with self.lock:
            hold = Hold(entry, next(self.drawn), time.monotonic() + seconds, is_lease=True)
            entry.leases -= 1
            self.add_hold(hold)
        return hold.number

    def add_hold(self, hold: Hold) -> None:
        """pre: locked"""
        hold.entry.holds[hold.number] = hold
        self.hold_count += 1
        self.add_deadline(hold)

    def add_deadline(self, hold: Hold) -> None:
        """Make the thread end the hold in time. pre: locked"""
        if not math.isfinite(hold.deadline):
            return
        if len(self.deadlines) > 2 * self.hold_count + 64:  # most belong to holds that ended early
            self.deadlines = [item for item in self.deadlines if item[2].number in item[2].entry.holds]
            heapq.heapify(self.deadlines)
        heapq.heappush(self.deadlines, (hold.deadline, next(self.drawn), hold))
        if self.deadlines[0][0] < self.sleeps_until:  # also for an earlier one, if an interrupt came before its wake
            self.wake()

    def number_of(self, lender: Lender) -> int:
        with self.lock:
            if lender not in self.numbers:
                self.numbers[lender] = next(self.numbered)
            return self.numbers[lender]

    def end_hold(self, key: Key) -> None:
        """End the handle's hold. Buffers on their way in a queue have their own."""
        with self.lock:
            entry = self.entries.get(key)
            hold = entry.of_handle if entry is not None else None
        if hold is not None:
            self.end_leases(hold.entry, 0, [hold])

    def receive(self, entry: Entry, number: int) -> None:
        """End the hold of a send that has arrived: the receiver has a lease. 0 is a handle that was not sent so."""
        with self.lock:
            hold = entry.holds.get(number)
        if hold is not None and hold is not entry.of_handle:
            self.end_leases(entry, 0, [hold])

    def lease(self, key: Key) -> tuple[Entry, SharedBlock]:
        """Add a process that has a block open. Raises KeyError if the block is not available any more."""
        leased: list[SharedBlock] = []  # by the engine
        entry = None
        try:
            with self.lock:
                found = self.entries[key]
                found.leases += 1
                entry = found
            return entry, entry.allocator.sharing._lease_block(entry.block, entry.generation, leased)
        except BaseException as error:
            if entry is not None:
                self.end_leases(entry, 1, in_engine=bool(leased))
            if isinstance(error, RequestError):
                raise KeyError(key) from None
            raise

    def end_leases(self, entry: Entry, leases: int, holds: Iterable[Hold] = (), *, in_engine: bool = True) -> None:
        """End this many leases and these holds of a block; skips holds that have ended already."""
        with self.lock:
            entry.leases -= leases
            ended = [hold for hold in holds if entry.holds.pop(hold.number, None) is not None]
            self.hold_count -= len(ended)
            if entry.of_handle in ended:
                entry.of_handle = None
            lender = entry.lender
            is_over = lender is not None and entry.leases == 0 and not entry.holds
            if is_over:
                del self.entries[entry.key]
                entry.lender = None
        if is_over:
            entry.order.end()
        if lender is not None and in_engine and (leases or ended):
            held_leases = sum(hold.is_lease for hold in ended)
            lender.sharing._end_shares(entry.block, entry.generation, leases + held_leases, len(ended) - held_leases)
        if is_over and threading.current_thread() is self.thread:
            parting = [lender]
            del lender
            if sys.getrefcount(parting[0]) == _LAST_REFERENCE:
                # Closing an allocator waits for its device, whose work may wait for an importer that this thread
                # serves.
                threading.Thread(target=_close, args=(parting,), name="allotment close", daemon=True).start()

    # --- the thread ---

    def start(self) -> None:
        with self.lock:
            if self.thread is not None:
                return
            with contextlib.ExitStack() as on_failure:
                listener = on_failure.enter_context(wire.packet_socket())
                listener.bind(wire.address_of(os.getpid(), process_token()))
                listener.listen(_BACKLOG)
                listener.setblocking(False)
                waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                on_failure.callback(os.close, waker)
                spare = os.dup(waker)
                on_failure.callback(os.close, spare)
                selector = on_failure.enter_context(selectors.DefaultSelector())
                selector.register(listener, selectors.EVENT_READ, self.accept)
                selector.register(waker, selectors.EVENT_READ, lambda: os.eventfd_read(waker))
                thread = threading.Thread(target=self.serve, name="allotment sharing", daemon=True)
                on_failure.pop_all()
                self.selector, self.listener, self.waker, self.spare = selector, listener, waker, spare
                self.thread = thread
            thread.start()  # an interrupt here comes after the start

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
            self.run(self.listen_again)
            for client in [client for client in self.clients if client.waiting is not None]:
                self.run(partial(self.open_when_over, client))

    def run(self, step: Callable[[], None]) -> None:
        """Run a step for one process or block: if it fails, the others are still served."""
        try:
            step()
        except OSError:
            pass  # of a process that is gone
        except Exception as error:
            facts = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(facts))

    def close_ours(self) -> None:
        """End what this very process had open. Finalizers cannot: they may run while the lock is held."""
        while self.closing:
            self.end_leases(self.closing.popleft(), 1)

    def seconds_left(self) -> float | None:
        if any(client.waiting is not None for client in self.clients):
            return _POLL_SECONDS
        with self.lock:
            first = min(self.deadlines[0][0] if self.deadlines else math.inf, self.listens_again)
            self.sleeps_until = first
        return min(max(first - time.monotonic(), 0.0), _LONGEST_WAIT) if math.isfinite(first) else None

    def expire(self) -> None:
        now = time.monotonic()
        over = []
        with self.lock:
            while self.deadlines and self.deadlines[0][0] <= now:
                hold = heapq.heappop(self.deadlines)[2]
                if hold.deadline <= now:
                    over.append(hold)
        for hold in over:
            self.end_leases(hold.entry, 0, [hold])

    def accept(self) -> None:
        assert self.listener is not None and self.selector is not None
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in wire.SHORTAGES:
                self.turn_away(error)
            return
        try:
            if wire.peer_of(connection)[1] != user_id():
                wire.send(connection, Reply(Answer.OTHER_USER).pack())
                connection.close()
                return
            client = Client(connection, wire.watch_peer(connection))
        except OSError as error:
            with contextlib.suppress(OSError):
                wire.send(connection, shortage(error).pack())
            connection.close()
            return
        connection.setblocking(False)
        self.clients.add(client)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.read(client))
        if client.watch is not None:
            self.selector.register(client.watch, selectors.EVENT_READ, lambda: self.forget(client))

    def turn_away(self, error: OSError) -> None:
        """Tell a process that waits to be accepted why it is not, using the descriptor that is kept for this.

        If that is not enough, accept nobody for a moment: the system would refuse again at once.
        """
        assert self.listener is not None and self.selector is not None
        if self.spare >= 0:
            os.close(self.spare)
            self.spare = -1
        try:
            connection, _ = self.listener.accept()
            with contextlib.suppress(OSError):
                wire.send(connection, shortage(error).pack())
            connection.close()
            self.spare = os.dup(self.waker)
        except OSError:
            self.selector.unregister(self.listener)
            self.listens_again = time.monotonic() + _SHORTAGE_SECONDS

    def listen_again(self) -> None:
        if self.listens_again > time.monotonic():
            return
        assert self.listener is not None and self.selector is not None
        try:
            if self.spare < 0:
                self.spare = os.dup(self.waker)
        except OSError:
            self.listens_again = time.monotonic() + _SHORTAGE_SECONDS
            return
        self.listens_again = math.inf
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)

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
                self.end_leases(held[0], 1)
            return
        try:
            if request.ask is Ask.MORE:
                self.reply(client, self.pieces(client.leases[request.key], request.argument))
                return
            if request.ask is Ask.SEND_ON:
                number = self.send_on(client.leases[request.key][0].key, request.seconds)
                self.reply(client, Reply(Answer.OK, count=number))
                return
            if request.key not in client.leases:
                client.leases[request.key] = self.lease(request.key)
            entry = client.leases[request.key][0]
            client.waiting = request, entry
            self.open_when_over(client)
        except KeyError:
            self.reply(client, Reply(Answer.EXPIRED))
        except Exception as error:  # a device's, or the host's without memory
            self.refuse(client, request, error)

    def refuse(self, client: Client, request: Request, error: Exception) -> None:
        client.waiting = None
        # A refused further request does not close the block that the process has open; it closes that itself.
        held = client.leases.pop(request.key, None) if request.ask is Ask.OPEN else None
        if held is not None:
            self.end_leases(held[0], 1)
        self.reply(client, Reply(Answer.FAILED, text=f"{type(error).__name__}: {error}"))

    def open_when_over(self, client: Client) -> None:
        """Reply to a process that opens a block, unless this side has to wait for the owner's work first."""
        assert client.waiting is not None
        request, entry = client.waiting
        try:
            with self.lock:
                order = entry.order
            if not order.is_over():
                return
            client.waiting = None
            pipe = order.waiting_end()
            held = client.leases[request.key]
            reply = Reply(Answer.OK) if request.ask is Ask.OPEN_AGAIN else self.pieces(held, 0)
            shared = held[1]
            reply.plain = shared.pieces[0][0] == 0
            reply.size, reply.offset, reply.base = shared.size, shared.offset, shared.base
            reply.count = len(shared.pieces)
            reply.events = order.handles()
            reply.order = order.kind if order.kind is not OrderKind.PIPE or pipe is not None else OrderKind.NOTHING
            reply.descriptors = [*reply.descriptors, *([pipe.descriptor] if pipe is not None else [])]
            if self.reply(client, reply):
                self.receive(entry, request.argument)
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
        if first == 0:
            way_in_words = wire.way_of(reply.pieces[0], len(shared.pieces), shared.pieces[0][0] == 0)
            _logs.shared(device.name, entry.block, shared.size, way_in_words)
        return reply

    def reply(self, client: Client, reply: Reply) -> bool:
        """Send a reply; return whether the process could receive it."""
        if client.connection is None:
            return False
        try:
            wire.send(client.connection, reply.pack(), reply.descriptors)
        except OSError:
            self.disconnect(client)
            return False
        return True

    def disconnect(self, client: Client) -> None:
        """Stop talking to a process. It keeps its leases until it is gone, where that can be detected."""
        if client.connection is not None:
            assert self.selector is not None
            self.selector.unregister(client.connection)
            client.connection.close()
            client.connection = None
            client.waiting = None
        if client.watch is None or not client.leases:
            self.forget(client)

    def forget(self, client: Client) -> None:
        """End all leases and holds of a process that is gone."""
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
            self.end_leases(entry, 1)

    # --- shutdown ---

    def stop(self) -> None:
        """At exit: stop the thread."""
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
        for descriptor in [self.waker, self.spare, *(client.watch for client in self.clients)]:
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        for lender in {id(entry.lender): entry.lender for entry in self.entries.values()}.values():
            if lender is not None:
                lender.sharing._end_all_shares()


def shortage(error: OSError) -> Reply:
    return Reply(Answer.FAILED, text=f"it is short of descriptors or memory ({error.strerror}; see ulimit -n)")


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


def _close(parting: list[Lender]) -> None:
    """Close an allocator of which this is the last reference.

    Without an interpreter lock, dropping the reference would leave that to the thread that created the allocator, and
    the device's work may wait for that thread.
    """
    with contextlib.suppress(RequestError):  # C code has its entry points: it never ends
        parting[0].close()
    parting.clear()


def share(lender: Lender, block: int, hold: float) -> SharedHandle:
    """Return a handle of a block, which is held for `hold` seconds even if it is freed meanwhile."""
    return _owner.share(lender, block, checked_hold(hold))


def send(lender: Lender, block: int, hold: float) -> tuple[SharedHandle, int]:
    """Return a handle of a block for one receiver, and the number of its hold, which opening with that number ends."""
    made, handle = _owner.send(lender, block, checked_hold(hold))
    return handle, made.number


def end_hold(facts: Facts) -> None:
    """Stop further processes from opening a handle; does nothing if the block is another process's."""
    if facts.token == process_token():
        _owner.end_hold((facts.allocator, facts.block, facts.generation))


class Held(NamedTuple):
    """A block of this very process, opened like another's."""

    entry: Entry
    shared: SharedBlock
    close: Callable[[], None]
    send_on: Callable[[float], int]


def lease_here(facts: Facts, number: int) -> Held:
    """Open a block of this process; `number` is that of its send, or 0. Raises KeyError if its holds have ended."""
    owner = _owner
    key = (facts.allocator, facts.block, facts.generation)
    entry, shared = owner.lease(key)

    def close() -> None:
        owner.closing.append(entry)
        owner.wake()

    try:
        owner.receive(entry, number)
        return Held(entry, shared, close, partial(owner.send_on, key))
    except BaseException:
        close()
        raise
