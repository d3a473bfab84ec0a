"""An answer of the control API for everything that the client can ask."""

from __future__ import annotations

import io

import pyarrow as pa
from tests.support.server import IMPORTS, Server, imported

EPISODE = {
    "id": "e1", "key": "-", "task": "t", "split": "train", "model": "inbox", "adapter": "inbox@1", "state": "done", "started": 1.0,
    "ended": 2.0, "calls": 3, "reward": 0.5,
}  # fmt: skip


ADAPTER = {"name": "inbox@1", "model": "inbox", "version": 1, "state": "live", "created": 1.0, "path": "inbox@1"}


GROUP = {"id": "g1", "kind": "task", "key": "-", "task": "t", "split": "train", "model": "inbox", "episodes": []}


CASES = {"name": "s1", "version": 2, "cases": 1, "changed": 1.0}
CASE = {
    "key": "-",
    "episode": "e1",
    "task": "t",
    "tags": {},
    "reward": 0.5,
    "calls": 3,
    "since": 1,
    "added": 1.0,
    "detail": EPISODE,
}


def arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"call": ["c1"], "prompt_ids": pa.array([[1, 2]], pa.list_(pa.int32()))})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def fill(server: Server) -> None:
    """An answer for everything that the client can ask."""
    server.on("GET", "/episodes", {"episodes": [EPISODE], "next": None})
    server.on("GET", "/episodes/e1", EPISODE)
    server.on("POST", "/episodes/e1/rewards", {"stored": True, "known": False})
    server.on("POST", "/episodes/e1/feedback", {"stored": True, "known": False})
    server.on("POST", "/episodes/e1/feedback", {"stored": True, "known": True})
    server.on("POST", "/episodes/e1/done", {})
    server.on("DELETE", "/episodes/e1", {"id": "e1", "adapters": ["inbox@1"]})
    server.on("POST", "/forget", {"forgotten": 1, "adapters": ["inbox@1"]})
    server.on("GET", "/learning", {"points": [], "success_from": 1.0})
    line = {
        "name": "t1",
        "episodes": 2,
        "calls": 3,
        "prompt_tokens": 40,
        "completion_tokens": 6,
        "serving_seconds": 1.5,
        "training_seconds": 2.0,
    }
    server.on("GET", "/cost", {"lines": [line], "total": line | {"name": None, "dollars": 0.02}})
    server.on("GET", "/cases", {"sets": [CASES]})
    server.on("GET", "/cases/s1", {"set": CASES, "version": 2, "cases": [CASE], "next": None})
    for path in ("", "/import", "/remove"):
        server.on("POST", f"/cases/s1{path}", {"set": CASES, "changed": 1})
    server.on("DELETE", "/cases/s1", CASES)
    server.on("POST", "/groups/lease", {"lease": "l1", "until": 9.0, "groups": [GROUP]})
    server.on("POST", "/groups/g1/scores", {})
    server.on("POST", "/judge/report", {"groups": 2})
    server.on("POST", "/judge/reruns", {"stored": True})
    server.on("POST", "/training/again", {"groups": 1, "passes": 2, "episodes": 8, "corrected": 0, "left_out": {}})
    server.on(
        "POST",
        "/training/anew",
        {"groups": 1, "passes": 1, "episodes": 2, "corrected": 0, "left_out": {}, "adapters": ["m@2"], "start": "m@1"},
    )
    server.on("DELETE", "/training/again", {"groups": 1})
    server.on("GET", "/groups/parked", {"groups": [GROUP]})
    server.on("POST", "/groups/g1/retry", {})
    server.on("GET", "/judge/cache/k1", {"key": "k1", "value": {"a": 1}, "at": 1.0})
    server.on("PUT", "/judge/cache/k1", {})
    server.on(
        "POST", "/batches/lease", arrow(), x_slipstream_batch="b1", x_slipstream_lease="l1", x_slipstream_until="9.5"
    )
    batch = {"id": "b1", "model": "inbox", "state": "trained", "created": 1.0, "groups": ["g1"], "episodes": []}
    server.on("GET", "/batches/b1", batch)
    server.on("GET", "/adapters/inbox@1/replay", {"adapter": "inbox@1", "replay": None})
    server.on("POST", "/batches/b1/ack", {})
    server.on("POST", "/batches/b1/gaps", {})
    server.on("POST", "/leases/release", {})
    server.on("POST", "/engine/hold", {"worker": "w", "until": 9.0, "ready": True})
    server.on("POST", "/engine/release", {"held": True, "wake_seconds": 0.5})
    server.on("POST", "/adapters", ADAPTER)
    server.on("POST", "/adapters/try", {"tried": True})
    server.on("GET", "/adapters", {"adapters": [ADAPTER], "live": {"inbox": "inbox@1"}})
    server.on("POST", "/adapters/inbox@1/promote", ADAPTER)
    for action in ("demote", "freeze", "unfreeze"):
        server.on("POST", f"/adapters/inbox@1/{action}", ADAPTER)
    effect = {"adapter": "inbox@1", "action": "promote", "says": ["New runs get inbox@1."]}
    server.on("GET", "/adapters/inbox@1/effect", effect)
    server.on("POST", "/training/events", {})
    server.on(
        "GET", "/training/events", '{"id": 1, "kind": "step", "data": {"a": "x\u2028y"}}\n\n{"id": 2, "kind": "step"}\n'
    )
    server.on("GET", "/status", {"version": "1", "started": 1.0, "models": {"inbox": "inbox@1"}})
    entry = {
        "id": "a1",
        "at": 1.0,
        "name": "ann",
        "action": "promote",
        "target": "inbox@1",
        "detail": {"reason": "better"},
    }
    server.on("GET", "/audit", {"entries": [entry]})
    server.on("GET", "/tenants", {"tenants": [{"name": "acme", "running": True}]})
    server.on("POST", "/training/pause", {"paused": True, "by": "ann"})
    server.on("POST", "/training/resume", {"paused": False})
    server.on("POST", "/annotations", {"annotations": []})
    server.on("POST", "/sql", {"columns": ["n"], "rows": [[1]]})
    server.routes |= {("POST", path): imported for path in IMPORTS}
    server.on("POST", "/import/adapters", {})
    server.on("POST", "/adapters/inbox@1/keep", ADAPTER)
    server.on("GET", "/export", b"one\ntwo\n")
