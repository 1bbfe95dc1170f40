"""The page's server: its replies, and the clients that get them."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress

import numpy as np
import pytest

from allotment._viewer.runs import Runs
from allotment._viewer.server import LOOPBACK, MOST_CONNECTIONS, PageServer, _Handler, _Server
from allotment.lab.explain.waste import Waste

PATIENCE = 120
"""Seconds until a server that does not answer fails a test instead of hanging it."""


def ask(
    server: PageServer, path: str, *, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def unpacked(body: bytes) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    length = int.from_bytes(body[:4], "little")
    about = json.loads(body[4 : 4 + length])
    kinds = {"Uint8Array": "u1", "Int32Array": "<i4", "Float64Array": "<f8"}
    at, arrays = 4 + length, {}
    for name, kind, count in about["arrays"]:
        arrays[name] = np.frombuffer(body, kinds[kind], count, at)
        at += -(-arrays[name].nbytes // 8) * 8
    assert at == len(body)
    return about, arrays


PATHS = ("/", "/index.html", "/api/runs", "/wrong/", "/wrong/api/runs", "//api/runs", "/%2e%2e/api/runs")


@pytest.mark.threads
@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_the_token_gets_nothing(server: PageServer, path: str) -> None:
    for method in ("GET", "POST"):
        status, _, body = ask(server, path, method=method)
        assert (status, body) == (403, b"")


@pytest.mark.threads
def test_a_part_of_the_token_is_not_the_token(server: PageServer) -> None:
    for token in (server.token[:-1], server.token + "x", server.token.swapcase(), ""):
        assert ask(server, f"/{token}/")[0] == 403


@pytest.mark.threads
def test_a_name_that_was_pointed_at_this_machine_is_refused(server: PageServer) -> None:
    path = f"/{server.token}/"
    assert ask(server, path)[0] == 200
    assert ask(server, path, Host=f"evil.example:{server.port}")[::2] == (403, b"")
    assert ask(server, path, Host="127.0.0.1")[::2] == (403, b"")


@pytest.mark.threads
def test_it_listens_only_on_loopback(server: PageServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.2", server.port))  # would be in use if it listened everywhere


@pytest.mark.threads
def test_two_servers_have_two_tokens(runs: Runs, server: PageServer) -> None:
    other = PageServer(runs)
    try:
        assert len(server.token) >= 32 and other.token != server.token
        assert ask(server, f"/{other.token}/")[0] == 403
    finally:
        other.close()


@pytest.mark.threads
def test_the_page_may_only_run_its_own_scripts_and_call_its_own_server(server: PageServer) -> None:
    status, headers, body = ask(server, f"/{server.token}/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and b"<!doctype html>" in body
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"


@pytest.mark.threads
def test_columns_add_up_and_are_as_many_as_requested(server: PageServer, runs: Runs) -> None:
    run = runs.shown[0]
    last, entry = run.timeline.last, run.timeline.entries[-1]
    _, _, body = ask(
        server, f"/{server.token}/api/series?run=0&start=0&end={entry}&columns=300&by=stream&query=%3E1MiB"
    )
    about, arrays = unpacked(body)
    bands = arrays["bands"].reshape(-1, len(arrays["moment"]))
    waste = arrays["waste"].reshape(-1, len(arrays["moment"]))
    assert len(arrays["moment"]) == 300 and about["end"] == last + 1
    assert bands.sum(axis=0).max() == run.timeline.peak_live[1]
    assert arrays["reserved"].max() == run.timeline.peak_reserved[1]
    assert len(waste) == len(Waste.__slots__) and np.all(waste >= 0)
    assert np.all(arrays["found"] <= arrays["reserved"])


@pytest.mark.threads
@pytest.mark.parametrize("cells", [50, 500, 100_000])
def test_a_map_of_few_cells_has_few_pieces_and_all_bytes(server: PageServer, runs: Runs, cells: int) -> None:
    timeline = runs.shown[0].timeline
    moment, length = timeline.peak_reserved[0], timeline.axis.length
    path = f"/{server.token}/api/moment?run=0&moment={moment}&start=0&end={length}&cells={cells}&by=stream"
    about, arrays = unpacked(ask(server, path)[2])
    assert len(arrays["place"]) <= 2 * cells + 2
    assert arrays["size"].sum() == length
    assert np.array_equal(arrays["place"][1:], arrays["place"][:-1] + arrays["size"][:-1])
    assert sum(about["states"][:4]) == timeline.reserved_at(moment)
    assert sum(about["waste"]) == timeline.reserved_at(moment) - about["live"] and sum(about["held"]) == about["live"]


@pytest.mark.threads
def test_a_block_shows_its_life_and_what_it_pins(server: PageServer, runs: Runs) -> None:
    timeline = runs.shown[0].timeline
    moment = timeline.peak_reserved[0]
    life = int(timeline.alive(moment)[0])
    block = json.loads(ask(server, f"/{server.token}/api/block?run=0&life={life}&moment={moment}")[2])
    assert block["size"] == timeline.lives.size[life] and block["begin"] == timeline.lives.begin[life]
    assert block["pins"] == timeline.pieces(moment).pinned_by(life)[0]


@pytest.mark.threads
def test_other_settings_are_tried_on_request_and_shown_once(server: PageServer, runs: Runs) -> None:
    path, body = f"/{server.token}/api/try", json.dumps({"settings": "max_split_size_mb:64", "source": 0})
    shown = json.loads(ask(server, path, method="POST", body=body)[2])
    again = json.loads(ask(server, path, method="POST", body=body)[2])
    assert [run["settings"] for run in shown] == [None, "expandable_segments:True", "max_split_size_mb:64"]
    assert len(again) == 3
    runs.shown.pop()


WRONG_SETTINGS = (
    "",
    "[]",
    "{",
    '{"settings": "nonsense:1", "source": 0}',
    '{"settings": "", "source": 7}',
    '{"settings": "", "source": null}',
    '{"settings": "", "source": true}',
    '{"settings": "", "source": {}}',
    '{"settings": null, "source": 0}',
    '{"settings": ["compat:2.11"], "source": 0}',
    '{"source": 0}',
    '{"settings": "", "source": 1e999}',
    '{"settings": "", "source": ' + "[" * 2000,
    '{"settings": "", "source": ' + "1" * 4000 + "}",
    "x" * 9999,
)
WRONG = (
    "api/series?run=9&start=0&end=1&columns=10",
    "api/series?run=0&start=nan&end=1&columns=10",
    "api/series?run=0",
    "api/moment?run=0&moment=0&start=0&end=inf&cells=10",
    "api/moment?run=zero&moment=0&start=0&end=1&cells=10",
    "api/search?run=0&query=life%3Esoon&moment=0",
    "api/block?run=0&life=x&moment=0",
    "flame?run=9",
    "flame",
    "api/block?run=0&life=0&moment=" + "9" * 5000,
    "api/series?run=0&start=0&end=1&columns=" + "9" * 5000,
)


@pytest.mark.threads
def test_a_flame_graph_is_a_page_without_requests(server: PageServer) -> None:
    status, headers, body = ask(server, f"/{server.token}/flame?run=0")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert b"connect-src 'none'" in body and b'id="data"' in body
    assert ask(server, "/flame?run=0")[0] == 403


@pytest.mark.threads
@pytest.mark.parametrize("path", WRONG)
def test_what_makes_no_sense_is_refused_with_a_reason(server: PageServer, path: str) -> None:
    status, _, body = ask(server, f"/{server.token}/{path}")
    assert status == 400 and json.loads(body)["error"]


@pytest.mark.threads
@pytest.mark.parametrize("number", ["-1", "9" * 15, "9" * 30, "-" + "9" * 30])
def test_a_moment_outside_the_history_gets_an_answer(server: PageServer, number: str) -> None:
    for path in ("block?life=0", "search?query=%00", "moment?start=0&end=1&cells=10"):
        assert ask(server, f"/{server.token}/api/{path}&run=0&moment={number}")[0] in (200, 400)


@pytest.mark.threads
@pytest.mark.parametrize("body", WRONG_SETTINGS)
def test_settings_that_make_no_sense_are_refused_with_a_reason(server: PageServer, body: str) -> None:
    status, _, answer = ask(server, f"/{server.token}/api/try", method="POST", body=body)
    assert status == 400 and json.loads(answer)["error"]


@pytest.mark.threads
def test_a_fault_of_ours_is_an_answer_too(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.runs, "try_settings", lambda settings, source: [].missing)  # type: ignore[attr-defined]
    body = '{"settings": "", "source": 0}'
    status, headers, answer = ask(server, f"/{server.token}/api/try", method="POST", body=body)
    assert status == 500 and "AttributeError" in json.loads(answer)["error"]
    assert headers["Connection"] == "close"


@pytest.mark.threads
def test_what_follows_a_refused_request_on_its_connection_is_not_read(server: PageServer) -> None:
    head = (
        f"POST /{server.token}/api/try HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    inner = f"GET /{server.token}/api/runs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
    answer = sent(server, head + inner)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


def sent(server: PageServer, text: str) -> bytes:
    """Return all that is received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(text.encode())
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


@pytest.mark.threads
@pytest.mark.parametrize(
    "line", ["GET / HTTP/1.1", "POST /wrong/api/try HTTP/1.1", "PUT /x/ HTTP/1.1", "HELLO", "GET //[ x"]
)
def test_a_request_without_the_token_is_refused_at_its_first_line(server: PageServer, line: str) -> None:
    assert sent(server, line + "\r\n").startswith(b"HTTP/1.1 403")  # no header was sent, and the server waits for none


@pytest.mark.threads
def test_half_requests_hold_few_threads_and_do_not_keep_the_page_out(server: PageServer) -> None:
    strangers = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(300)]
    try:
        for stranger in strangers[:-MOST_CONNECTIONS]:
            with suppress(ConnectionError):
                stranger.sendall(b"GET /")
                assert stranger.recv(1) == b""  # closed to make room, otherwise this times out
        assert ask(server, f"/{server.token}/")[0] == 200
        assert json.loads(ask(server, f"/{server.token}/api/runs")[2])
    finally:
        for stranger in strangers:
            stranger.close()


def test_clients_that_come_at_once_are_let_in_before_the_server_looks() -> None:
    """The system drops what a full queue cannot hold, and the client retries after seconds: so would the page."""
    server = _Server((LOOPBACK, 0), _Handler)
    clients = []
    try:
        for _ in range(4 * MOST_CONNECTIONS):
            clients.append(socket.create_connection(server.server_address, timeout=0.5))
    finally:
        for client in (*clients, server.socket):
            client.close()


@pytest.mark.threads
def test_connections_that_have_shown_the_token_are_not_closed_for_others(server: PageServer) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    kept.request("GET", f"/{server.token}/api/runs")
    kept.getresponse().read()
    socket_of_kept = kept.sock
    address = ("127.0.0.1", server.port)
    strangers = [socket.create_connection(address, timeout=PATIENCE) for _ in range(3 * MOST_CONNECTIONS)]
    kept.request("GET", f"/{server.token}/api/runs")
    assert kept.getresponse().status == 200 and kept.sock is socket_of_kept
    for connection in (*strangers, kept):
        connection.close()


@pytest.mark.threads
def test_a_client_that_sends_nothing_more_is_disconnected(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.05)
    assert sent(server, "GET /") == b""
    assert sent(server, f"POST /{server.token}/api/try HTTP/1.1\r\nContent-Length: 100\r\n") == b""


@pytest.mark.threads
def test_a_block_that_is_not_there_is_nothing(server: PageServer) -> None:
    for life in (-1, 10**9, 2**70):
        answer = json.loads(ask(server, f"/{server.token}/api/block?run=0&life={life}&moment=0")[2])
        assert answer == {}
