"""`allotment top`: the processes that it finds, their figures, and processes that misbehave or die."""

import errno
import io
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import asdict
from fcntl import ioctl

import pytest

from allotment import _cli
from allotment._cli.top_live import BACK, DOWN, ENTER, QUIT, UP, Top, read_key
from allotment._cli.top_screen import COLUMNS, in_order, process_screen, processes_screen, sorts_shown
from allotment._monitor import asking
from allotment._monitor.answering import NAME
from allotment._monitor.asking import Silent, addresses, ask_all, ask_lines, ask_snapshot
from allotment._monitor.figures import Figures, Report, read_report
from allotment._monitor.overview import Process, overview
from allotment.errors import FormatError, RequestError
from allotment.lab import explain
from helpers.peer import Peer, wait_until

pytestmark = [pytest.mark.threads, pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")]

MIB = 1 << 20
HOME = b"\x1b[H"  # begins a screen
MAKE = "alloc = Allocator('host', settings='monitor:True,expandable_segments:True'); block = alloc.malloc(3 << 20)"


def pids():
    return {each.pid for each in ask_all(30)}


def addresses_of(pid):
    """Return the processes with this number: other programs of this user may start and end meanwhile."""
    return [each for each in addresses() if each.split(b"-")[3] == b"%d" % pid]


def top(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        _cli.main(["top", *arguments])
    return ended.value.code, capsys.readouterr()


@pytest.fixture
def peer():
    with Peer() as peer:
        peer.run(MAKE)
        yield peer


# --- which processes are there ---


def test_a_process_announces_itself_only_if_it_is_asked_to():
    with Peer() as quiet, Peer(ALLOTMENT_MONITOR="1") as announced, Peer() as set_up:
        quiet.run("alloc = Allocator('host')")
        announced.run("alloc = Allocator('host')")
        set_up.run(MAKE)
        assert pids() >= {announced.pid, set_up.pid}
        assert quiet.pid not in pids()
        threads = quiet.run("import threading; result = [thread.name for thread in threading.enumerate()]")
        assert "allotment monitor" not in threads


def test_only_allocators_whose_settings_ask_for_it_are_shown(peer):
    peer.run("other = Allocator('sim:1GiB')")
    found = next(each for each in ask_all(30) if each.pid == peer.pid)
    assert [each.device for each in found.allocators] == ["host"]


def test_a_process_that_was_killed_leaves_nothing_behind(peer):
    assert len(addresses_of(peer.pid)) == 1
    peer.kill()
    assert addresses_of(peer.pid) == []
    assert peer.pid not in pids()


def test_a_child_of_fork_is_not_its_parent(peer):
    peer.run(
        """
        import os, time
        child = os.fork()
        if child == 0:
            time.sleep(600)
        """
    )
    child = peer.run("result = child")
    try:
        assert peer.pid in pids() and child not in pids()
        peer.kill()
        assert not {peer.pid, child} & pids()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_the_process_of_another_user_is_neither_shown_nor_an_error():
    program = """
        import os
        os.setuid(65534)
        alloc = Allocator('host', settings='monitor:True')
        result = os.getuid()
        """
    with Peer() as other:
        # Everything is imported first: that user may not be able to read this folder.
        other.run("import allotment._monitor.answering, allotment._monitor.asking; Allocator('host').close()")
        assert other.run(program) == 65534
        assert other.pid not in pids()
        # Nor does it answer a client that knows its address.
        listed = other.run("from allotment._monitor.asking import addresses; result = addresses()")
        (own,) = (each for each in listed if each.split(b"-")[3] == b"%d" % other.pid)
        with pytest.raises(PermissionError):
            asking.Conversation(own, {"ask": "figures"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_another_user_who_takes_a_name_of_ours_is_not_believed():
    program = """
        import os, socket
        os.setuid(65534)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        """
    with Peer() as other:
        address = NAME % os.geteuid() + b"%d-00" % other.pid
        other.run(program, address=address)
        assert address in addresses()
        assert other.pid not in pids()


# --- what they say ---


def test_figures_are_those_of_the_allocator(capsys):
    with Peer() as peer:
        peer.run(MAKE)
        peer.run(
            """
            import allotment
            kept = alloc.tenant("trainer").malloc(5 << 20)
            with allotment.tag("weights"):
                tagged = alloc.malloc(30 << 20)
            alloc.pause("weights")
            alloc.limit = "1GiB"
            try:
                alloc.malloc("2GiB")
            except allotment.OutOfMemoryError:
                pass
            """
        )
        code, printed = top(capsys, str(peer.pid), "--json")
        stats = peer.run("result = alloc.stats()")
    process = json.loads(printed.out)["processes"][0]
    device = process["devices"][0]
    assert code == 0 and process["pid"] == peer.pid and "helpers.peer" in process["command"]
    assert device["device"] == "host"
    assert device["reserved_bytes"] == stats["reserved_bytes.all.current"]
    assert device["allocated_bytes"] == stats["allocated_bytes.all.current"]
    assert device["active_bytes"] == stats["active_bytes.all.current"]
    assert device["limit_bytes"] == 1 << 30
    assert device["ooms"] == 1
    assert device["paused"] == {"weights": 40 * MIB}
    assert device["tenants"]["trainer"] == 5 * MIB
    assert device["requests_per_s"] == 0


def test_two_allocators_on_a_device_are_added_up_and_rates_are_taken_between_looks():
    def report(seconds, *requests):
        held = ("host", "", 10, 8, 8, 6, 100, None, None, 0, 0)
        return Report(1, "x", seconds, [Figures(*held, count, {}, {}, {"a": 3}) for count in requests])

    share = overview([report(12.0, 300, 50)], [report(10.0, 100, 50)]).processes[0].devices[0]
    assert (share.reserved_bytes, share.limit_bytes, share.tenants) == (20, 200, {"a": 6})
    assert share.requests_per_s == 100
    reset = overview([report(12.0, 5, 5)], [report(10.0, 100, 50)]).processes[0].devices[0]
    assert reset.requests_per_s == 0
    assert overview([report(12.0, 5)]).processes[0].devices[0].requests_per_s is None


def test_what_no_process_holds_of_a_device_is_the_rest_and_a_device_is_one_under_two_numbers():
    def held(pid, name, reserved):
        return Report(pid, "", 1.0, [Figures(name, "gpu", reserved, 0, 0, 0, None, 30, 100, 0, 0, 0)])

    devices = overview([held(1, "cuda:0", 20), held(2, "cuda:1", 10)]).devices
    assert [(each.reserved_bytes, each.others_bytes) for each in devices] == [(30, 40)]


def test_lines_of_code_are_those_that_hold_most(peer):
    assert all(line.where == "" for line in ask_lines(peer.pid))
    peer.run("alloc.record_history('state'); more = [alloc.malloc(9 << 20) for _ in range(3)]")
    first = ask_lines(peer.pid)[0]
    assert (first.bytes, first.blocks) == (27 * MIB, 3)
    assert "<string>:1" in first.where


def test_a_snapshot_of_a_running_process_is_opened_by_the_lab(peer, tmp_path, capsys):
    peer.run("alloc.record_history(); more = [alloc.malloc(9 << 20) for _ in range(3)]")
    path = tmp_path / "live.pickle"
    code, printed = top(capsys, str(peer.pid), "--snapshot", str(path))
    assert code == 0 and "host of process" in printed.out
    assert explain(path).peak.live_bytes >= 27 * MIB
    assert [each.name for each in tmp_path.iterdir()] == ["live.pickle"]


def test_a_snapshot_of_a_device_that_the_process_has_not_is_refused(peer):
    with pytest.raises(RequestError, match="its devices are: host"):
        ask_snapshot(peer.pid, "cuda:7")


def test_a_process_that_does_not_announce_itself_says_what_to_do(capsys):
    code, printed = top(capsys, str(os.getpid()), "--once")
    assert code == 2 and "ALLOTMENT_MONITOR=1" in printed.err
    assert top(capsys, "--snapshot", "x")[0] == 2


def test_ten_thousand_tags_are_shown(peer):
    peer.run(
        """
        for number in range(10_000):
            with allotment.tag(f"tag {number}"):
                alloc.free(alloc.malloc(1000))
        """
    )
    found = next(each for each in ask_all(30) if each.pid == peer.pid)
    assert len(found.allocators[0].tags) == 10_000
    with pytest.raises(FormatError):
        read_report({**found.as_json(), "allocators": [{**asdict(found.allocators[0]), "tags": {"x": -1}}]})


# --- those that do not behave ---


def test_a_stopped_process_is_shown_as_not_answering_and_answers_later(peer):
    os.kill(peer.pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(peer.pid, os.WUNTRACED)[1])
    try:
        for _ in range(20):  # more questions than a process keeps in its queue
            found = [each for each in ask_all(0.01) if each.pid == peer.pid]
            assert found == [Silent(peer.pid)]
    finally:
        os.kill(peer.pid, signal.SIGCONT)
    # It first has to answer the queued questions.
    wait_until(lambda: any(isinstance(each, Report) and each.pid == peer.pid for each in ask_all(30)))


@pytest.fixture
def pretender():
    """Make a socket of this user with an address like a process's, which sends a reply."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(NAME % os.geteuid() + b"%d-ff" % os.getpid())
        listener.listen()
        answers = []

        def serve():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        def start(*given):
            answers.extend(given)
            thread = threading.Thread(target=serve)
            thread.start()
            return thread

        yield start


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"{", b"[" * 100_000, b"[]", b'{"pid": 1}', b"\xff\xfe", b'{"error": "no"}',
        b'{"pid": 1, "command": "x", "seconds": 1, "allocators": [{}]}',
        b'{"pid": 1, "command": "x", "seconds": NaN, "allocators": []}',
        b'{"pid": true, "command": "x", "seconds": 1, "allocators": []}',
    ],
    ids=range(10),
)  # fmt: skip
def test_a_process_that_dies_while_it_is_asked_or_answers_nonsense_is_left_out(pretender, answer):
    thread = pretender(answer)
    assert os.getpid() not in pids()
    thread.join()


def test_what_another_process_says_cannot_move_the_cursor():
    sent = Report(1, "x\x1b[2Jy", 1.0, []).as_json()
    assert read_report(sent).command == "x\\x1b[2Jy"
    with pytest.raises(FormatError):
        read_report({**sent, "command": 7})


def test_an_invalid_question_ends_nothing(peer):
    for question in (b"", b"{", b"[]", b'{"ask": "everything"}', b'{"ask": ["figures"]}'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(addresses_of(peer.pid)[0])
            connection.sendall(question)
            connection.shutdown(socket.SHUT_WR)
    assert peer.pid in pids()


def test_an_allocator_is_made_where_no_socket_can_be_opened():
    with Peer() as peer:
        threads = peer.run(
            """
            import socket, threading
            def refuse(*arguments):
                raise OSError(24, "too many files")
            real, socket.socket = socket.socket, refuse
            alloc = Allocator('host', settings='monitor:True')
            socket.socket = real
            result = [thread.name for thread in threading.enumerate()]
            """
        )
        assert "allotment monitor" not in threads
        peer.run("again = Allocator('host', settings='monitor:True')")
        assert peer.pid in pids()


# --- the terminal ---


def processes(*reserved):
    return [
        Process(pid, "python train.py", True, overview([Report(pid, "", 1.0, [
            Figures("cuda:0", "", size, pid, 0, 0, None, None, None, 0, 0, 0)])]).processes[0].devices)
        for pid, size in enumerate(reserved, 1)
    ]  # fmt: skip


def test_the_largest_comes_first_by_the_column_of_the_key():
    listed = processes(10, 30, 20)
    assert [each.pid for each in in_order(listed, "r")] == [2, 3, 1]
    assert [each.pid for each in in_order(listed, "l")] == [3, 2, 1]
    assert [each.pid for each in in_order(listed, "p")] == [1, 2, 3]


def test_keys_are_those_that_terminals_send():
    assert [read_key(each) for each in (b"\x1b[A", b"\x1bOB", b"\r", b"\x1b", b"q", b"r", b"\x1b[1;5C")] == [
        UP, DOWN, ENTER, BACK, QUIT, "r", "\x1b",
    ]  # fmt: skip


def test_a_process_that_ends_while_it_is_open_brings_back_the_list(peer):
    shown = Top()
    shown.look()
    shown.open(peer.pid)
    peer.kill()
    shown.look()
    assert shown.opened is None and f"process {peer.pid} has ended" in shown.message
    shown.press(ENTER)
    shown.press(DOWN)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 250])
def test_no_line_is_wider_than_the_terminal(width):
    from rich.console import Console

    found = overview([])
    found.processes = processes(*range(1, 60))
    console = Console(width=width, height=20, record=True, file=io.StringIO())
    console.print(processes_screen(found, width, chosen=40, rows=10))
    lines = console.export_text().splitlines()
    assert len(lines) <= 11 and max(map(len, lines)) <= width
    assert any(line.split()[:1] == ["40"] for line in lines)


def drawn(shown, width):
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [40, 60, 100])
def test_an_open_process_takes_the_rows_it_is_given_and_counts_what_it_does_not_name(width):
    process = processes(7 << 30)[0]
    process.devices[0].tags.update({f"tag {number}": 1 << 20 for number in range(10_000)})
    lines = drawn(process_screen(process, [], width, rows=30), width)
    assert len(lines) <= 30 and max(map(len, lines)) <= width
    assert any("9,992 other tags" in line for line in lines)


def test_keys_are_shown_for_visible_columns_and_scripts_without_folders():
    found = overview([])
    found.processes = processes(1 << 30)
    found.processes[0].command = "/opt/venv/bin/python3.12 /home/me/train.py --fast"
    for width in (50, 80, 130):
        text = "\n".join(drawn(processes_screen(found, width), width))
        for column in COLUMNS:
            assert (column.title in text) == (f"{column.key} {column.title}" in sorts_shown(width))
    assert "train.py --fast" in text and "python" not in text and "/home" not in text


def test_a_terminal_with_only_ascii_gets_only_ascii(peer):
    done = subprocess.run(
        [sys.executable, "-m", "allotment", "top", "--once"],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "110"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"reservedv" in done.stdout and b"\\u" not in done.stdout


def read_until(descriptor, wanted, without=None):
    """Return what a program writes, until it contains `wanted`; with `without`, until a screen has only the first."""
    text = b""
    while not (
        wanted in text
        if without is None
        else any(wanted in screen and without not in screen for screen in text.split(HOME)[1:])
    ):
        assert select.select([descriptor], [], [], 60)[0], text
        try:
            text += os.read(descriptor, 65536)
        except OSError as error:
            assert error.errno == errno.EIO, text
            raise AssertionError(text) from None
    return text


def test_in_a_terminal_it_shows_opens_resizes_and_ends_with_q(peer):
    peer.run("alloc.free(alloc.malloc(1 << 30))")  # so that it is first in the list, whichever other processes exist
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 120, 0, 0))
    program = subprocess.Popen(
        [sys.executable, "-m", "allotment", "top", "--seconds", "600"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"},  # as shells leave them
    )  # fmt: skip
    try:
        assert b"requests/s" in read_until(ours, str(peer.pid).encode())
        os.write(ours, b"w")
        read_until(ours, "waste▾".encode())
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 20, 50, 0, 0))
        os.kill(program.pid, signal.SIGWINCH)
        read_until(ours, b"reserved", without=b"waste")
        os.write(ours, b"\r")
        read_until(ours, b'record_history("state")')
        os.write(ours, b"q")
        read_until(ours, b"\x1b[?1049l")  # the screen from before
        assert program.wait(60) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        program.kill()
        program.wait()
        os.close(ours)
        os.close(theirs)
