"""The page's server: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import socket

import numpy as np
import pytest

from allotment._viewer.runs import Runs
from allotment._viewer.server import PageServer
from allotment.lab.explain.waste import Waste


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
def test_it_listens_on_loopback_alone(server: PageServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.2", server.port))  # would be taken if it listened everywhere


@pytest.mark.threads
def test_two_servers_have_two_tokens(runs: Runs, server: PageServer) -> None:
    other = PageServer(runs)
    try:
        assert len(server.token) >= 32 and other.token != server.token
        assert ask(server, f"/{other.token}/")[0] == 403
    finally:
        other.close()


@pytest.mark.threads
def test_the_page_may_run_its_own_scripts_and_ask_its_own_server_alone(server: PageServer) -> None:
    status, headers, body = ask(server, f"/{server.token}/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and b"<!doctype html>" in body
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"


@pytest.mark.threads
def test_columns_add_up_and_are_as_many_as_asked_for(server: PageServer, runs: Runs) -> None:
    run = runs.shown[0]
    last = run.timeline.last
    _, _, body = ask(server, f"/{server.token}/api/series?run=0&start=0&end={last}&columns=300&by=stream&query=%3E1MiB")
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
    assert sum(about["states"][:4]) == timeline.peak_reserved[1]
    assert sum(about["waste"]) == timeline.peak_reserved[1] - about["live"] and sum(about["held"]) == about["live"]


@pytest.mark.threads
def test_a_block_tells_its_life_and_what_it_pins(server: PageServer, runs: Runs) -> None:
    timeline = runs.shown[0].timeline
    moment = timeline.peak_reserved[0]
    life = int(timeline.alive(moment)[0])
    block = json.loads(ask(server, f"/{server.token}/api/block?run=0&life={life}&moment={moment}")[2])
    assert block["size"] == timeline.lives.size[life] and block["begin"] == timeline.lives.begin[life]
    assert block["pins"] == timeline.pieces(moment).pinned_by(life)[0]


@pytest.mark.threads
def test_other_settings_are_tried_when_asked_for_and_shown_once(server: PageServer, runs: Runs) -> None:
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
)


@pytest.mark.threads
@pytest.mark.parametrize("path", WRONG)
def test_what_makes_no_sense_is_refused_with_a_reason(server: PageServer, path: str) -> None:
    status, _, body = ask(server, f"/{server.token}/{path}")
    assert status == 400 and json.loads(body)["error"]


@pytest.mark.threads
@pytest.mark.parametrize("body", WRONG_SETTINGS)
def test_settings_that_make_no_sense_are_refused_with_a_reason(server: PageServer, body: str) -> None:
    status, _, answer = ask(server, f"/{server.token}/api/try", method="POST", body=body)
    assert status == 400 and json.loads(answer)["error"]


@pytest.mark.threads
def test_a_block_that_is_not_there_is_nothing(server: PageServer) -> None:
    for life in (-1, 10**9, 2**70):
        answer = json.loads(ask(server, f"/{server.token}/api/block?run=0&life={life}&moment=0")[2])
        assert answer == {}
