"""Serves a page on this machine only: loopback, a random token, nothing from elsewhere.

The token is the first part of every path. A client without it gets an empty refusal, also for the page itself, and the
server reads no more of its request than the first line. The Host header must be the server's own address, so a foreign
page whose name resolves to loopback is refused too.

Each connection has a thread, so the number of connections is bounded: the server closes the oldest one that has not
shown the token to make room for a new one. So programs of other users on this machine can neither exhaust the threads
nor block the page.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from allotment._viewer.answers import Run
from allotment._viewer.document import served_page
from allotment._viewer.runs import Runs
from allotment.errors import AllotmentError, RequestError

__all__ = ["PageServer"]

LOOPBACK = "127.0.0.1"
MOST_POSTED = 4096
MOST_CONNECTIONS = 32
"""Connections at a time, each with a thread. A browser opens at most six to one server."""
PATIENCE = 30.0
"""Seconds that a client may take for the next part of a request, or stay silent between two."""
MALFORMED = "malformed request"
MOST_PLACE = float(1 << 62)
JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"
PAGE_TYPE = "text/html; charset=utf-8"
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
        """`port` 0 means any free port. Raises OSError if the port is taken."""
        self.runs = runs
        self.token = secrets.token_urlsafe(24)
        self._server = _Server((LOOPBACK, port), _Handler)
        self._server.owner = self
        self._thread = Thread(target=self._server.serve_forever, name="allotment view", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def wait(self) -> None:
        """Serve until closed or interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = socket.SOMAXCONN  # the system makes clients beyond it wait for a second or more
    owner: PageServer

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._lock = Lock()
        self._strangers: dict[int, socket.socket] = {}
        """Connections that have not shown the token, the oldest first."""
        self._known: set[int] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._strangers) + len(self._known) >= MOST_CONNECTIONS:
                if not self._strangers:
                    super().shutdown_request(request)
                    return
                oldest = self._strangers.pop(next(iter(self._strangers)))
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread then sees the end of the connection, and exits
            self._strangers[id(request)] = request
        super().process_request(request, client_address)

    def has_shown_token(self, request: socket.socket) -> None:
        """Keep this connection until it ends, even if others connect."""
        with self._lock:
            if self._strangers.pop(id(request), None) is not None:
                self._known.add(id(request))

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._strangers.pop(id(request), None)
            self._known.discard(id(request))
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that disconnected is not an error
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    raw_requestline: bytes
    server: _Server

    def version_string(self) -> str:
        return "allotment"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests carry the token."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def parse_request(self) -> bool:
        """Read the headers of a client that has the token; refuse any other client before that."""
        words = self.raw_requestline.split()
        if len(words) < 2 or self._path_of(words[1].decode("latin-1")) is None:
            self.requestline = self.command = ""
            self.request_version = self.protocol_version
            self._refuse()
            return False
        self.server.has_shown_token(self.connection)
        return super().parse_request()

    def _refuse(self) -> None:
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, b"", JSON_TYPE)

    def _answer(self, method: str) -> None:
        path = self._path_of(self.path)
        hosts = (f"{LOOPBACK}:{self.server.owner.port}", f"localhost:{self.server.owner.port}")
        if path is None or self.headers.get("Host") not in hosts:
            self._refuse()
            return
        try:
            status, kind, body, extra = self._find(method, path)
        except AllotmentError as error:
            status, kind, extra = HTTPStatus.BAD_REQUEST, JSON_TYPE, {}
            body = _json({"error": str(error)})
        except OSError:
            raise  # the client disconnected, or is too slow
        except (KeyError, ValueError, IndexError, OverflowError, RecursionError):
            status, kind, body, extra = HTTPStatus.BAD_REQUEST, JSON_TYPE, _json({"error": MALFORMED}), {}
        except Exception as error:
            status, kind, extra = HTTPStatus.INTERNAL_SERVER_ERROR, JSON_TYPE, {}
            body = _json({"error": f"internal error: {type(error).__name__}: {error}"})
        # The rest of a request that was refused may still be coming, and must not be read as the next one.
        self.close_connection = self.close_connection or status != HTTPStatus.OK
        self._send(status, body, kind, extra)

    def _path_of(self, target: str) -> str | None:
        """The part of a request's target after the token; None without the token."""
        try:
            token, _, path = urlsplit(target).path.removeprefix("/").partition("/")
        except ValueError:
            return None
        return path if hmac.compare_digest(token.encode(), self.server.owner.token.encode()) else None

    def _find(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes, dict[str, str]]:
        runs = self.server.owner.runs
        if method == "GET" and path == "":
            page, policy = served_page()
            return HTTPStatus.OK, PAGE_TYPE, page, {"Content-Security-Policy": policy}
        if method == "GET" and path == "api/runs":
            return HTTPStatus.OK, JSON_TYPE, _json([run.overview() for run in runs.shown]), {}
        if method == "POST" and path == "api/try":
            asked = self._posted()
            settings, source = asked.get("settings"), asked.get("source")
            if not isinstance(settings, str) or type(source) is not int:
                raise RequestError(MALFORMED)
            runs.try_settings(settings, source)
            return HTTPStatus.OK, JSON_TYPE, _json([run.overview() for run in runs.shown]), {}
        if method == "GET" and (path == "flame" or path in ANSWERS):
            fields = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
            number = int(fields["run"])
            if not 0 <= number < len(runs.shown):
                raise RequestError(f"there is no run {number}")
            if path == "flame":
                return HTTPStatus.OK, PAGE_TYPE, runs.flame(number), {}
            kind, answer = ANSWERS[path]
            return HTTPStatus.OK, kind, answer(runs.shown[number], fields), {}
        return HTTPStatus.NOT_FOUND, JSON_TYPE, b"", {}

    def _posted(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", 0))
        if not 0 < length <= MOST_POSTED:
            raise RequestError(MALFORMED)
        asked = json.loads(self.rfile.read(length))
        if not isinstance(asked, dict):
            raise RequestError(MALFORMED)
        return asked

    def _send(self, status: HTTPStatus, body: bytes, kind: str, extra: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in {**HEADERS, **(extra or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the page no longer needs the answer


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _by(run: Run, fields: Fields) -> str:
    by = fields.get("by", "")
    return by if by in run.timeline.groupings else run.timeline.groupings[0]


def _place(text: str) -> float:
    """Parse a place on an axis. Raises ValueError, also for a place outside the axis."""
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
