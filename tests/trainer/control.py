"""A control API that leases made-up batches: what the trainer's worker talks to in tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa

API = "/slipstream/v1"


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


class Control:
    """``waiting``: tables not leased yet, by batch batch. A leased one comes back when its worker releases it."""

    def __init__(self, model: str = "tiny") -> None:
        self.model = model
        self.waiting: dict[str, pa.Table] = {}
        self.leased: dict[str, tuple[str, str]] = {}
        self.all: dict[str, pa.Table] = {}
        self.acks: list[tuple[str, dict[str, Any]]] = []
        self.done: dict[str, str] = {}
        self.adapters: dict[str, dict[str, Any]] = {}
        self.live = model
        self.events: list[dict[str, Any]] = []
        self.released: list[str] = []
        self.broken = 0
        """Requests that are answered 503 before the next good one."""
        self.held: str | None = None
        """Who has the engine."""
        self.holds: list[str] = []
        """``hold``, ``busy`` and ``release``, as they were asked for."""
        self.falling = 0
        """Requests for a hold that are answered "not yet" before the next good one."""
        self.lock = threading.Lock()
        self.url = ""

    def add(self, batch: str, table: pa.Table) -> None:
        with self.lock:
            self.all[batch] = self.waiting[batch] = table

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        with self.lock:
            return [e["data"] for e in self.events if e["kind"] == kind]

    def roll_back(self, name: str, live: str) -> None:
        with self.lock:
            self.adapters[name]["state"] = "rolled_back"
            self.live = live
            if live in self.adapters:
                self.adapters[live]["state"] = "live"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            if self.broken:
                self.broken -= 1
                return 503, b'{"error": {"type": "busy", "message": "not now"}}', {}
            data = json.loads(body) if body else {}
            return self.route(method, path.removeprefix(API).split("?")[0], data)

    def route(self, method: str, path: str, data: Any) -> tuple[int, bytes, dict[str, str]]:
        if path == "/batches/lease":
            if not self.waiting:
                return 204, b"", {}
            batch = next(iter(self.waiting))
            table = self.waiting.pop(batch)
            lease = f"lease{len(self.released)}-{batch}"
            self.leased[batch] = (lease, data["worker"])
            head = {
                "x-slipstream-batch": batch,
                "x-slipstream-lease": lease,
                "x-slipstream-until": str(time.time() + data["seconds"]),
            }
            return 200, ipc(table), head
        if path.startswith("/batches/"):
            batch = path.split("/")[2]
            if self.done.get(batch, data["outcome"]) != data["outcome"]:
                return 409, b'{"error": {"type": "lost", "message": "the lease is lost"}}', {}
            self.acks.append((batch, data))
            self.done[batch] = data["outcome"]
            self.waiting.pop(batch, None)
            self.leased.pop(batch, None)
            return 200, b"{}", {}
        if path == "/engine/hold":
            ready = self.falling == 0
            self.falling = max(0, self.falling - 1)
            self.held = data["worker"]
            self.holds.append("hold" if ready else "busy")
            hold = {
                "worker": data["worker"],
                "until": time.time() + data["seconds"],
                "ready": ready,
                "sleep_seconds": 0.5,
            }
            return 200, json.dumps(hold).encode(), {}
        if path == "/engine/release":
            was, self.held = self.held == data["worker"], None
            self.holds.append("release")
            return 200, json.dumps({"held": was, "wake_seconds": 0.25}).encode(), {}
        if path == "/leases/release":
            self.released.append(data["worker"])
            for batch in [i for i, (_, w) in self.leased.items() if w == data["worker"]]:
                del self.leased[batch]
                self.waiting[batch] = self.all[batch]
            return 200, b"{}", {}
        if path == "/adapters" and method == "POST":
            name = data["path"]
            a = self.adapters.setdefault(
                name,
                {"name": name, "model": self.model, "version": int(name.rpartition("@")[2]), "state": "live", "created": 1.0, "path": name,
                 "parent": data["parent"], "step": data["step"], "batches": data["batches"]},
            )  # fmt: skip
            self.live = name
            return 201, json.dumps(a).encode(), {}
        if path == "/adapters":
            return (
                200,
                json.dumps({"adapters": list(self.adapters.values()), "live": {self.model: self.live}}).encode(),
                {},
            )
        if path == "/training/events" and method == "POST":
            self.events.append(data | {"id": len(self.events) + 1})
            return 200, b"{}", {}
        if path == "/training/events":
            return 200, b"\n".join(json.dumps(e).encode() for e in self.events), {}
        return 404, b'{"error": {"type": "no", "message": "no such route"}}', {}


@contextmanager
def serve(control: Control) -> Iterator[Control]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def both(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, out, head = control.answer(self.command, self.path, body)
            self.send_response(status)
            for k, v in head.items():
                self.send_header(k, v)
            if status != 204:
                self.send_header("content-length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        do_GET = do_POST = both

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    control.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield control
    finally:
        server.shutdown()
        server.server_close()
