"""Whichever call of the device or the system fails: an error is raised, and nothing stays mapped or open."""

import contextlib
import errno
import math
import os
import socket
import subprocess
import threading
from dataclasses import replace

import pytest

from allotment import Allocator, AllotmentError, DeviceError, open_shared
from allotment._sharing import device_calls, importer, wire
from allotment._sharing.handle import facts_of, make_handle
from helpers.peer import Peer, descriptors, everything_is_closed, mappings, wait_until

pytestmark = pytest.mark.threads
SETTINGS = {"plain": "", "expandable": "expandable_segments:True", "dense": "placement:dense"}
SYSTEM_CALLS = [
    (socket.socket, "connect"), (socket.socket, "sendmsg"), (socket.socket, "recvmsg"), (socket.socket, "getsockopt"),
    (os, "pidfd_open"), (os, "pipe2"), (os, "dup"), (os, "eventfd"), (socket.socket, "bind"), (socket.socket, "listen"),
]  # fmt: skip
IMPORTS = ["segment_import", "chunk_import", "range_reserve", "map", "set_access"]
EXPORTS = ["segment_export", "chunk_export", "event_create", "event_record", "event_query", "stream_query"]


def owner_program(kind, device):
    settings = ",".join(filter(None, ["shareable:True" if device == "host" else "", SETTINGS[kind]]))
    return f"""
    device = {'"host"' if device == "host" else 'SimulatedDevice("1GiB")'}
    allocator = Allocator(device, settings={settings!r})
    buffer = allocator.empty(45 << 20)
    result = allocator.share(buffer)
    """


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_device_that_refuses_while_memory_is_imported(kind):
    with Peer() as owner:
        handle = owner.run(owner_program(kind, "simulated"))
        open_shared(handle).close()
        wait_until(everything_is_closed)
        device = next(one for (family, _), one in importer._importer.devices.items() if family == "simulated")
        before, calls, refused = descriptors(), device.calls, dict.fromkeys(IMPORTS, 0)
        for operation in IMPORTS:
            for after in range(4):
                for out_of_memory in (True, False):
                    device.refuse(operation, after=after, out_of_memory=out_of_memory)
                    try:
                        open_shared(handle).close()
                    except AllotmentError as error:
                        assert operation in str(error)
                        refused[operation] += 1
                    device.refuse(operation, times=0)
                    wait_until(everything_is_closed)
        made = {name: count - calls[name] for name, count in device.calls.items()}
        assert sum(refused.values()) > 0
        assert descriptors() <= before
        assert made["unmap"] == made["map"] - refused["map"]
        assert made["range_release"] == made["range_reserve"] - refused["range_reserve"]
        assert made["segment_close"] == made["segment_import"] - refused["segment_import"]
        assert made["chunk_release"] == made["chunk_import"] - refused["chunk_import"]
        with open_shared(handle) as buffer:
            assert len(buffer) == 45 << 20
        owner.run("allocator.inspection.check_invariants()")


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_device_that_refuses_while_memory_is_exported(kind):
    with Peer() as owner:
        handle = owner.run(owner_program(kind, "simulated"))
        for operation in EXPORTS:
            for after in range(3):
                shared = owner.run(
                    """
                    device.launch(0)
                    device.refuse(operation, after=after)
                    try:
                        result = allocator.share(buffer)
                    except AllotmentError:
                        result = None
                    allocator.inspection.check_invariants()
                    device.finish(0)
                    """,
                    operation=operation,
                    after=after,
                )
                assert shared in (None, handle)
                try:
                    open_shared(handle).close()
                except AllotmentError as error:
                    assert operation in str(error)
                owner.run("device.refuse(operation, times=0)")
                wait_until(everything_is_closed)
        open_shared(handle).close()
        wait_until(everything_is_closed)
        owner.run("allocator.share(buffer).close(); buffer.close(); allocator.inspection.check_invariants()")
        wait_until(lambda: owner.run('result = allocator.stats()["active_bytes.all.current"]') == 0)


@pytest.mark.parametrize(("kind", "number"), [("plain", errno.EMFILE), ("expandable", errno.ENOMEM)])
def test_a_system_that_refuses_the_nth_call_of_the_importer(monkeypatch, kind, number):
    with Peer() as owner:
        handle = owner.run(owner_program(kind, "host"))
        open_shared(handle).close()
        wait_until(everything_is_closed)
        before = descriptors(), mappings()
        for place, name in SYSTEM_CALLS:
            real = getattr(place, name)
            for count in range(4):
                left = [count]

                def failing(*given, left=left, real=real):
                    left[0] -= 1
                    if left[0] == -1:
                        raise OSError(number, os.strerror(number))
                    return real(*given)

                if place is socket.socket:
                    monkeypatch.setattr(wire, "packet_socket", socket_class(name, failing))
                else:
                    monkeypatch.setattr(place, name, failing)
                with contextlib.suppress(AllotmentError, OSError):
                    open_shared(handle).close()
                monkeypatch.undo()
                wait_until(everything_is_closed)
                wait_until(lambda: descriptors() <= before[0] and mappings() <= before[1])
        with open_shared(handle) as buffer:
            assert len(buffer) == 45 << 20


def socket_class(name, failing):
    """Makes sockets of which one method fails."""
    kind = type("FailingSocket", (socket.socket,), {name: lambda self, *given: failing(self, *given)})
    return lambda: kind(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


@pytest.mark.parametrize("kind", ["plain", "expandable"])
def test_an_importer_without_a_descriptor_to_spare(kind):
    allocator = Allocator("host", settings=f"shareable:True,{SETTINGS[kind]}".rstrip(","))
    buffer = allocator.empty(45 << 20)
    handle = allocator.share(buffer)
    with Peer() as peer:
        outcome = peer.run(
            """
            import resource
            from allotment._sharing.importer import _importer
            open_shared(handle).close()
            wait_until(lambda: not _importer.links)
            spare = max(int(name) for name in os.listdir("/proc/self/fd"))
            fillers = []
            while not fillers or fillers[-1] < spare:
                fillers.append(os.dup(0))  # none below the limit is free
            result = []
            for more in range(12):
                resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + more, 4096))
                try:
                    open_shared(handle).close()
                    result.append("opened")
                except (AllotmentError, OSError) as error:
                    result.append(type(error).__name__)
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
            open_shared(handle).close()
            """,
            handle=handle,
        )
        assert outcome[-1] == "opened"
        assert outcome[0] != "opened"
    handle.close()
    buffer.close()
    wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)
    allocator.inspection.check_invariants()


def refusal_of(handle, **options):
    """Return why a handle is not opened. Uses a thread: an owner that does not answer must not hang the test."""
    raised = []

    def open_it():
        try:
            open_shared(handle, **options).close()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=open_it, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the owner does not answer"
    return raised[0] if raised else None


def test_an_owner_without_a_descriptor_to_spare_says_so_and_serves_again_later():
    with Peer() as owner:
        handle = owner.run(owner_program("plain", "host"))
        owner.run("taken = take_all_descriptors()")
        for _ in range(3):
            error = refusal_of(handle)
            assert isinstance(error, DeviceError)
            assert "short of descriptors or memory (Too many open files; see ulimit -n)" in str(error)
        owner.run("os.close(taken.pop())")  # enough for the connection, not for watching the importer
        assert "short of descriptors" in str(refusal_of(handle))
        owner.run("close_descriptors(taken)")
        with open_shared(handle) as buffer:
            assert len(buffer) == 45 << 20


def test_an_owner_that_cannot_even_refuse_stops_listening_for_a_moment():
    with Peer() as owner:
        handle = owner.run(owner_program("plain", "host"))
        owner.run(
            """
            import errno, math
            from allotment._sharing import owner as module
            module._SHORTAGE_SECONDS, _owner = 3600, module._owner
            class Deaf:
                accepts = 0
                def __init__(self, socket): self.socket = socket
                def __getattr__(self, name): return getattr(self.socket, name)
                def accept(self):
                    self.accepts += 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            listener, deaf = _owner.listener, Deaf(_owner.listener)
            _owner.listener = deaf
            """
        )
        thread = threading.Thread(target=lambda: open_shared(handle).close())
        thread.start()
        owner.run(
            """
            wait_until(lambda: _owner.listens_again < math.inf)
            assert deaf.accepts == 2
            _owner.listener, _owner.listens_again = listener, 0.0
            _owner.wake()
            """
        )
        thread.join(60)
        assert not thread.is_alive()
        owner.run("assert _owner.listens_again == math.inf")


def test_an_importer_keeps_its_block_when_the_owner_cannot_let_it_open_the_block_again():
    with Peer() as owner:
        handle = owner.run(owner_program("plain", "host"))
        opened = open_shared(handle)
        owner.run(
            """
            gate = threading.Event()
            stream = Stream.default(allocator)
            stream.submit(gate.wait)
            allocator.share(buffer)
            taken = take_all_descriptors()
            """
        )
        error = refusal_of(handle)
        assert isinstance(error, DeviceError) and "Too many open files" in str(error)
        active = "result = allocator.stats()['active_bytes.all.current']"
        owner.run("close_descriptors(taken); gate.set(); allocator.share(buffer).close(); buffer.close()")
        assert owner.run(active) > 0
        opened.close()
        wait_until(lambda: owner.run(active) == 0)


def test_a_boot_id_that_could_not_be_read_without_a_descriptor_is_read_later():
    allocator = Allocator("host", settings="shareable:True")
    handle = allocator.share(allocator.empty(100), hold=math.inf)
    with Peer() as peer:
        number = peer.run(
            """
            taken = take_all_descriptors()
            try:
                open_shared(handle)
            except OSError as error:
                result = error.errno
            finally:
                close_descriptors(taken)
            """,
            handle=handle,
        )
        assert number == errno.EMFILE
        assert peer.run("with open_shared(handle) as b: result = len(b)", handle=handle) == 100
        peer.run(
            """
            from allotment._sharing.identity import boot_id
            boot_id.cache_clear()
            allocator = Allocator("host", settings="shareable:True")
            buffer = allocator.empty(100)
            allocator.share(buffer).close()
            boot_id.cache_clear()
            taken = take_all_descriptors()
            try:
                allocator.share(buffer)
            except OSError as error:
                result = error.errno
            finally:
                close_descriptors(taken)
            assert result == 24
            buffer.close()
            assert allocator.stats()["active_bytes.all.current"] == 0
            """
        )
    handle.close()


IN_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_have_namespaces():
    try:
        return subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_have_namespaces(), reason="no PID namespace can be made here: it takes root and unshare")
@pytest.mark.parametrize("importer_is_inside", [True, False])
def test_processes_in_two_pid_namespaces_share_and_notice_each_others_end(importer_is_inside):
    inside, outside = Peer(*IN_NAMESPACE), Peer()
    with inside, outside:
        assert inside.run("result = os.getpid()") != inside.pid
        owner, importer = (outside, inside) if importer_is_inside else (inside, outside)
        handle = owner.run(owner_program("plain", "host"))
        first = importer.run("b = open_shared(handle); result = len(b)", handle=handle)
        assert first == 45 << 20
        owner.run("allocator.share(buffer).close(); buffer.close()")
        assert owner.run("result = allocator.stats()['active_bytes.all.current']") > 0
        importer.kill()
        wait_until(lambda: owner.run("result = allocator.stats()['active_bytes.all.current']") == 0)


class Stranger:
    """A process of this user that talks to an owner's socket in its own way."""

    def __init__(self, handle):
        facts = facts_of(handle)
        self.socket = wire.packet_socket()
        self.socket.connect(wire.address_of(facts.process, facts.token))
        self.facts = facts


def test_an_owner_is_not_held_up_by_a_process_that_sends_nonsense_or_does_not_read():
    with Peer() as owner:
        handle = owner.run(owner_program("plain", "host"))
        for data in (b"", b"x", bytes(29), b"\xff" * 29, os.urandom(60_000)):
            stranger = Stranger(handle)
            if data:
                stranger.socket.send(data)
            stranger.socket.close()
        deaf = Stranger(handle)
        request = wire.Request(wire.Ask.OPEN, deaf.facts.block, deaf.facts.generation, deaf.facts.allocator)
        deaf.socket.setblocking(False)
        sent = 0
        try:
            while sent < 20_000:
                deaf.socket.send(request.pack())
                sent += 1
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        with open_shared(handle) as buffer:
            assert len(buffer) == 45 << 20
        deaf.socket.close()
        assert owner.run("result = threading.active_count()") <= 4


def test_an_owner_that_sends_nonsense_is_refused():
    listener = wire.packet_socket()
    with Peer() as owner:
        handle = owner.run(owner_program("plain", "host"))
        forged = make_handle(replace(facts_of(handle), token=bytes(16), process=os.getpid()))
        listener.bind(wire.address_of(os.getpid(), bytes(16)))
        listener.listen(8)
        before = descriptors()
        ok = wire.Reply(wire.Answer.OK, True, 100, 0, 4096, 1)
        huge = wire.Reply(wire.Answer.OK, True, 1 << 50, 1 << 40, 4096, 1, pieces=[wire.Piece(2, 4096, bytes(64))])
        descriptor = os.memfd_create("allotment-nonsense")
        os.ftruncate(descriptor, 4096)
        unsealed = wire.Reply(wire.Answer.OK, True, 100, 0, 4096, 1, pieces=[wire.Piece(1, 4096)])
        for reply, given in ((b"x", []), (ok.pack()[:-3], []), (ok.pack(), [descriptor]), (huge.pack(), []),
                             (unsealed.pack(), [descriptor]), (os.urandom(300), [descriptor])):  # fmt: skip
            answer_once(listener, reply, given)
            with pytest.raises(AllotmentError):
                open_shared(forged)
            wait_until(everything_is_closed)
        os.close(descriptor)
        wait_until(lambda: descriptors() <= before)
    listener.close()


def answer_once(listener, reply, given):
    """In a thread: the first client gets this."""

    def serve():
        connection, _ = listener.accept()
        connection.recv(100)
        wire.send(connection, reply, given)
        connection.recv(100)
        connection.close()

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused_by_both_sides():
    allocator = Allocator("host", settings="shareable:True")
    buffer = allocator.empty(100)
    handle = allocator.share(buffer)
    with Peer() as peer:
        reasons = peer.run(
            """
            from dataclasses import replace
            # Import everything first: the other user may not be able to read the folder that holds this clone.
            import allotment._devices.host.device  # which `open_shared` imports when it is first called
            from allotment._sharing import importer, wire
            from allotment._sharing.handle import facts_of, make_handle
            os.setresuid(65534, 65534, 65534)
            result = []
            for given in (handle, make_handle(replace(facts_of(handle), user=65534))):
                try:
                    open_shared(given)
                except SharingError as error:
                    result.append(error.reason)
            # One that does not check, and asks all the same.
            facts = facts_of(handle)
            connection = wire.packet_socket()
            connection.connect(wire.address_of(facts.process, facts.token))
            connection.settimeout(30)
            try:
                connection.send(wire.Request(wire.Ask.OPEN, facts.block, facts.generation, facts.allocator).pack())
                data, beside, *_ = connection.recvmsg(4096, 4096)
                result.append((wire.Reply.read(data, []).answer.name, beside))
            except (ConnectionResetError, BrokenPipeError):
                result.append(("OTHER_USER", []))  # hung up on with the question unread, or not even asked
            """,
            handle=handle,
        )
    assert reasons == ["other_user", "other_user", ("OTHER_USER", [])]
    handle.close()


def test_events_are_refused_and_nothing_is_lost():
    """A device whose events fail while the importer closes has nothing left to wait for."""
    allocator = Allocator("sim:1GiB")
    buffer = allocator.empty(100)
    handle = allocator.share(buffer)
    opened = open_shared(handle)
    device = allocator.device
    device.launch(0)
    device.refuse("event_create", out_of_memory=False)
    opened.close()
    device.finish()
    handle.close()
    buffer.close()
    wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)
    assert device_calls.is_idle(device, 0)
