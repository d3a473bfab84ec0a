"""A small HTTP server that speaks what a test tells it to: the network boundary of the SDK's tests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    """Break off before the announced length."""

    @property
    def raw(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


Answer = Reply | Callable[[Seen], Reply]


@dataclass
class Server:
    url: str
    routes: dict[tuple[str, str], Answer] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)

    def on(self, method: str, path: str, body: Any = b"", status: int = 200, **headers: str) -> None:
        """``path`` without the query. Control-API paths may leave out their prefix."""
        self.routes[method, path] = Reply(body, status, {k.replace("_", "-"): v for k, v in headers.items()})

    def asked(self, method: str, path: str) -> list[Seen]:
        return [s for s in self.seen if (s.method, s.path) == (method, path)]


def imported(seen: Seen) -> Reply:
    """What the proxy's import routes answer: all of it is new."""
    sent = seen.json
    if "files" in sent:
        return Reply({"names": [f"{n:016x}" for n in range(len(sent["files"]))]})
    many = sent.get("conversations", sent.get("episodes"))
    told = [{"episode": one.get("id", "e1"), "calls": 1} for one in ([sent] if many is None else many)]
    return Reply(told[0] if many is None else {"episodes": told})


IMPORTS = ("/import", "/import/files", "/import/conversations", "/import/episode", "/import/episodes")


def _answer(server: Server, seen: Seen) -> Reply:
    short = seen.path.removeprefix("/slipstream/v1")
    for path in (seen.path, short):
        if (found := server.routes.get((seen.method, path))) is not None:
            return found if isinstance(found, Reply) else found(seen)
    return Reply(
        {"error": {"type": "not_found", "message": f"no {seen.method} {short} here", "fix": "look again"}}, 404
    )


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def _do(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("content-length") or 0)
            headers = {k.lower(): v for k, v in self.headers.items()}
            seen = Seen(self.command, parts.path, parse_qs(parts.query), headers, self.rfile.read(length))
            server.seen.append(seen)
            reply = _answer(server, seen)
            self.send_response_only(reply.status)
            if "date" not in reply.headers:
                self.send_header("date", self.date_time_string())
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("content-length", str(len(reply.raw) + (10 if reply.truncated else 0)))
            self.end_headers()
            self.wfile.write(reply.raw)
            self.close_connection = self.close_connection or reply.truncated

        do_GET = do_POST = do_PUT = do_DELETE = _do

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass

    httpd = Quiet(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{httpd.server_address[1]}")
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join(10)
