"""A page on this machine alone: loopback, a random token, nothing from elsewhere.

The token is the first part of every path. Whoever does not have it gets an empty refusal, also for the page itself. The
Host header has to be the address that was opened: a foreign page whose name was pointed at loopback is refused too.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from allotment._viewer.answers import Run
from allotment._viewer.document import served_page
from allotment._viewer.runs import Runs
from allotment.errors import AllotmentError, RequestError

__all__ = ["PageServer"]

LOOPBACK = "127.0.0.1"
MOST_POSTED = 4096
MOST_PLACE = float(1 << 62)
JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Fields = dict[str, str]


class PageServer:
    """Serves runs until it is closed."""

    def __init__(self, runs: Runs, port: int = 0) -> None:
        """`port` 0 is any that is free. Raises OSError if it cannot be had."""
        self.runs = runs
        self.token = secrets.token_urlsafe(24)
        self._server = _Server((LOOPBACK, port), _Handler)
        self._server.owner = self
        self._thread = Thread(target=self._server.serve_forever, name="allotment view", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """What to open."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def wait(self) -> None:
        """Until it is closed, or interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: PageServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def version_string(self) -> str:
        return "allotment"

    def log_message(self, format: str, *args: Any) -> None:
        """Requests carry the token, so they are not written anywhere."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        path = self._path()
        if path is None:
            self.close_connection = True
            self._send(HTTPStatus.FORBIDDEN, b"", JSON_TYPE)
            return
        try:
            status, kind, body, extra = self._find(method, path)
        except AllotmentError as error:
            status, kind, extra = HTTPStatus.BAD_REQUEST, JSON_TYPE, {}
            body = json.dumps({"error": str(error)}).encode()
        except (KeyError, ValueError, IndexError, OverflowError):
            status, kind, body, extra = HTTPStatus.BAD_REQUEST, JSON_TYPE, b'{"error": "malformed request"}', {}
        self._send(status, body, kind, extra)

    def _path(self) -> str | None:
        """What is asked for; None for someone who may not ask."""
        owner = self.server.owner
        if self.headers.get("Host") not in (f"{LOOPBACK}:{owner.port}", f"localhost:{owner.port}"):
            return None
        token, _, path = urlsplit(self.path).path.removeprefix("/").partition("/")
        return path if hmac.compare_digest(token.encode(), owner.token.encode()) else None

    def _find(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes, dict[str, str]]:
        runs = self.server.owner.runs
        if method == "GET" and path == "":
            page, policy = served_page()
            return HTTPStatus.OK, "text/html; charset=utf-8", page, {"Content-Security-Policy": policy}
        if method == "GET" and path == "api/runs":
            return HTTPStatus.OK, JSON_TYPE, _json([run.overview() for run in runs.shown]), {}
        if method == "POST" and path == "api/try":
            asked = self._posted()
            runs.try_settings(str(asked["settings"]), int(asked["source"]))
            return HTTPStatus.OK, JSON_TYPE, _json([run.overview() for run in runs.shown]), {}
        if method == "GET" and (found := ANSWERS.get(path)) is not None:
            fields = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
            number = int(fields["run"])
            if not 0 <= number < len(runs.shown):
                raise RequestError(f"there is no run {number}")
            kind, answer = found
            return HTTPStatus.OK, kind, answer(runs.shown[number], fields), {}
        return HTTPStatus.NOT_FOUND, JSON_TYPE, b"", {}

    def _posted(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", 0))
        if not 0 < length <= MOST_POSTED:
            raise RequestError("malformed request")
        asked = json.loads(self.rfile.read(length))
        if not isinstance(asked, dict):
            raise RequestError("malformed request")
        return asked

    def _send(self, status: HTTPStatus, body: bytes, kind: str, extra: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in {**HEADERS, **(extra or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the page has gone on to something else


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _by(run: Run, fields: Fields) -> str:
    by = fields.get("by", "")
    return by if by in run.timeline.groupings else run.timeline.groupings[0]


def _place(text: str) -> float:
    """A place on an axis. Raises ValueError, also for one that is on none."""
    found = float(text)
    if not 0 <= found < MOST_PLACE:
        raise ValueError(text)
    return found


def _series(run: Run, fields: Fields) -> bytes:
    start, end, columns = _place(fields["start"]), _place(fields["end"]), int(fields["columns"])
    return run.series(start, end, columns, _by(run, fields), fields.get("axis", "event"), fields.get("query", ""))


def _moment(run: Run, fields: Fields) -> bytes:
    start, end, cells = _place(fields["start"]), _place(fields["end"]), int(fields["cells"])
    return run.moment(int(fields["moment"]), start, end, cells, _by(run, fields), fields.get("query", ""))


ANSWERS: dict[str, tuple[str, Callable[[Run, Fields], bytes]]] = {
    "api/series": (BINARY_TYPE, _series),
    "api/moment": (BINARY_TYPE, _moment),
    "api/block": (JSON_TYPE, lambda run, fields: _json(run.block(int(fields["life"]), int(fields["moment"])))),
    "api/search": (JSON_TYPE, lambda run, fields: _json(run.search(fields["query"], int(fields["moment"])))),
}
