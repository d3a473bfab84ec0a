"""Traffic with a secret in each call and each write, and what looks for pieces of it afterwards."""

from __future__ import annotations

import asyncio
import io
import json
import random
import string
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import duckdb
import pyarrow.parquet as pq
from aiohttp import web
from tests.support.dataplane import parsed
from tests.support.fake_engine import LoraEngine
from tests.support.planted import PIECE_PATTERN, case, dumped, planted

from slipstream.contract import GroupLease
from slipstream.models import read_model
from slipstream_judge.text.excerpts import force
from slipstream_judge.text.prompt import build
from slipstream_judge.text.transcript import of_episode
from slipstream_proxy.control.api.app import installed_routes
from slipstream_proxy.log.segments import list_segments, read_segment

API = "/slipstream/v1"
EXPORTS = ("jsonl", "sft", "dpo", "parquet")
IN_HEADERS = string.ascii_letters + string.digits + "-_ .:/+=@#~'\"\\{}[],äß€日🙂"
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/tiny",
}


class SayingEngine(LoraEngine):
    """Answers each call with what it is told to say, in random pieces."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    def add_more(self, app: web.Application) -> None:
        super().add_more(app)
        app.router.add_post("/v1/responses", self.responses)

    async def _say(self, request: web.Request, name: str) -> web.StreamResponse:
        body = await request.json()
        if "return_token_ids" not in body and name == "completions":
            return await LoraEngine.completions(self, request)  # the control plane warms an adapter up
        _, stream, reply = case(self.rng, planted(self.rng), name, stream=bool(body.get("stream")))
        kind = "text/event-stream" if stream else "application/json"
        return web.Response(body=reply, headers={"content-type": kind})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._say(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._say(request, "completions")

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._say(request, "messages")

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._say(request, "responses")


def asked(name: str, text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a call that says ``text``."""
    path, body = PATHS[name], {"model": "tiny", "stream": stream}
    match name:
        case "completions":
            body["prompt"] = text
        case "responses":
            body["input"] = text
        case "gemini":
            path += ":streamGenerateContent?alt=sse" if stream else ":generateContent"
            body = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        case _:
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 50}
    return path, body


OTHER_HEADERS = (
    "idempotency-key", "x-session-affinity", "user-agent", "x-request-id", "x-openai-subagent", "x-parent-session-id",
    "x-claude-code-session-id", "x-claude-code-agent-id", "tracestate", "baggage", "traceparent", "x-forwarded-for", "cookie",
    "x-session-id", "session-id", "conversation-id", "referer", "x-stainless-retry-count", "accept", "x-title",
)  # fmt: skip
NAMING_FIELDS = ("user", "prompt_cache_key", "safety_identifier", "session_id", "previous_response_id", "conversation", "service_tier", "store", "cachedContent", "labels", "n", "stream_options", "tool_choice")  # fmt: skip
"""Of a body: what names somebody or something, or is of another kind than a text."""


class Sender:
    """Sends calls and writes that hold a secret in one field."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        rng: random.Random,
        controlled: Callable[[], bool] = lambda: True,
        *,
        first: int = 0,
    ) -> None:
        """``controlled``: whether the control plane is there. ``first``: the number before its first case."""
        self.url, self.session, self.rng, self.controlled = url, session, rng, controlled
        self.fields: Counter[str] = Counter()
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.number = first
        calls = {f"call.{what}": getattr(self, f"_{what}") for what in ("text", "deep", "name", "metadata", "path")}
        writes = {f"write.{what}": getattr(self, f"_{what}") for what in ("reward", "feedback", "label", "words")}
        self.kinds: dict[str, Callable[[str], Awaitable[None]]] = calls | writes

    def around(self, secret: str) -> str:
        """The secret in a text; in some it stands where texts are cut."""
        place = self.rng.choice([0, 3, 3, 60, 85, 120, 195, 2040])
        return "a" * place + " " + secret

    async def one(self) -> None:
        self.number += 1
        field = self.rng.choice(sorted(self.kinds))
        await self.kinds[field](field)
        self.fields[field] += 1

    async def call(self, field: str, text: str = "hi", change: dict[str, Any] | None = None, prefix: str = "", headers: dict[str, str] | None = None, query: str = "") -> str:  # fmt: skip
        """Returns the call's episode."""
        name, stream = self.rng.choice(sorted(PATHS)), self.rng.random() < 0.6
        path, body = asked(name, text, stream=stream)
        sent = {"x-slipstream-task": f"t{self.number // 2}", "x-slipstream-episode": f"e{self.number}", "x-slipstream-done": "true"}  # fmt: skip
        sent = {"content-type": "application/json", **({} if prefix else sent), **(headers or {})}
        raw = dumped(self.rng, body | (change or {})).encode()
        async with self.session.post(self.url + prefix + path + query, data=raw, headers=sent) as r:
            await r.read()
            self.statuses[field, r.status] += 1
            return r.headers.get("x-slipstream-episode", "")

    async def _text(self, field: str) -> None:
        await self.call(field, self.around(planted(self.rng)))

    async def _deep(self, field: str) -> None:
        secret = self.around(planted(self.rng))
        change: dict[str, Any] = self.rng.choice(
            [
                {self.rng.choice(NAMING_FIELDS): secret},
                {"stop": [secret[-30:]]},
                {"model": f"no {secret}"},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"title": secret}}}},
                {"tools": [{"type": "function", "function": {"name": "f", "description": secret, "parameters": {}}}]},
                {secret: 1},
                {"x": json.dumps({"a": [json.dumps({"b": secret})]})},
                {"messages": [{"role": "user", "content": [{"type": "text", "text": secret}]}]},
                {"messages": [{"role": "tool", "tool_call_id": secret, "content": "x"}]},
                {"messages": secret},
            ]
        )
        await self.call(field, change=change)

    async def _name(self, field: str) -> None:
        secret = self.around(planted(self.rng, IN_HEADERS))
        name = self.rng.choice(["episode", "task", "kind", "split", "tag-user", "tag-x", "capture"])
        named = {f"x-slipstream-{name}": secret}
        if self.rng.random() < 0.6:
            named = {self.rng.choice(OTHER_HEADERS): secret}
        if self.rng.random() < 0.1:
            named = {"authorization": f"Bearer any:{secret}"}
        await self.call(field, headers=named)

    async def _metadata(self, field: str) -> None:
        secret = self.around(planted(self.rng))
        name = self.rng.choice(["episode", "task", "kind", "split", "tag_a", f"tag_{secret}", "done"])
        await self.call(
            field, change={"metadata": {f"slipstream_{name}": secret, "user_id": secret}}, prefix="/t/t/e/e"
        )

    async def _path(self, field: str) -> None:
        secret = quote(self.around(planted(self.rng))[-200:], safe="")
        prefix = self.rng.choice([f"/e/{secret}", f"/t/{secret}/e/one", f"/t/{secret}", ""])
        await self.call(field, prefix=prefix, query="" if prefix else f"?{secret}={secret}")

    async def write(self, field: str, path: str, body: dict[str, Any]) -> int:
        async with self.session.post(f"{self.url}{API}{path}", json=body) as r:
            await r.read()
            self.statuses[field, r.status] += 1
            return r.status

    async def _reward(self, field: str) -> None:
        secret, episode = self.around(planted(self.rng))[-200:], await self.call(field)
        body: dict[str, Any] = {"value": 1.0}
        match self.rng.choice(["reason", "key", "name", "source"]):
            case "reason" | "key" as name:
                body[name] = secret[-100:]
            case name:  # the form of a name is checked before
                body[name] = planted(self.rng, "-_.")
        body |= self.rng.choice([{}, {"meta": {"a": [secret]}}, {"meta": {secret: {"b": 1}}}])
        await self.write(field, f"/episodes/{episode}/rewards", body)

    async def _feedback(self, field: str) -> None:
        secret, episode = self.around(planted(self.rng)), await self.call(field)
        body = {self.rng.choice(["text", "reply"]): secret, "key": secret[-100:]}
        await self.write(field, f"/episodes/{episode}/feedback", body)

    async def _label(self, field: str) -> None:
        secret, episode = self.around(planted(self.rng)), await self.call(field)
        body = {
            "value": 0.0,
            "source": "human",
            "name": "score",
            "reason": secret,
            "meta": {"edited": secret, "note": secret},
        }
        await self.write(field, f"/episodes/{episode}/rewards", body)

    async def _words(self, field: str) -> None:
        """Of people who work at the page. No worker takes these where the control plane is away."""
        secret = self.around(planted(self.rng))[-1000:]
        if not self.controlled():
            return
        match self.rng.randrange(4):
            case 0:
                path, body = f"/episodes/{await self.call(field)}/comments", {"text": secret, "to": secret[-100:]}
                for _ in range(100):  # its call is on the way to the store
                    if await self.write(field, path, body) != 404:
                        break
                    await asyncio.sleep(0.1)
            case 1:
                await self.write(field, "/annotations", {"text": secret})
            case 2:
                await self.write(field, "/training/pause", {"reason": secret})
                await self.write(field, "/training/resume", {"reason": secret})
            case _:
                line = {"id": secret[-100:], "task": secret[-90:], "tags": {secret[-80:]: secret}, "reward": 1.0,
                        "messages": [{"role": "user", "content": secret}, {"role": "assistant", "content": secret}]}  # fmt: skip
                await self.write(field, "/import", line)


class Scan:
    """Says where pieces of secrets are."""

    def __init__(self) -> None:
        self.found: list[tuple[str, bytes]] = []
        self.places: Counter[str] = Counter()

    def look(self, place: str, data: object) -> None:
        raw = data if isinstance(data, bytes) else data.encode() if isinstance(data, str) else json.dumps(data, default=str).encode()  # fmt: skip
        self.places[place] += len(raw)
        self.found += [(place, raw[max(0, m.start() - 60) : m.end() + 60]) for m in PIECE_PATTERN.finditer(raw)]


async def read(scan: Scan, session: aiohttp.ClientSession, url: str) -> None:
    """What exports and the page read, and what a judge would be asked."""

    async def get(place: str, path: str, **options: Any) -> bytes:
        method = options.pop("method", "GET")
        for _ in range(100):  # a busy machine is no fault of the store's
            async with session.request(method, url + path, **options) as r:
                body = await r.read()
            if r.status != 503:
                break
            await asyncio.sleep(0.2)
        assert r.status == 200 or not place.startswith("export"), (path, r.status, body[:300])
        scan.look(place, body)
        return body

    for name in EXPORTS:
        body = await get(f"export {name}", f"{API}/export?format={name}")
        if name == "parquet":
            scan.look("export parquet", pq.read_table(io.BytesIO(body)).to_pylist())
    await get("export edited", f"{API}/export?format=dpo&edits=true")
    for route in installed_routes():
        if route.method == "GET" and not route.endless and "{" not in route.path and not route.path.endswith("/backup"):
            await get("page", route.path)
    listed = json.loads(await get("page", f"{API}/episodes?limit=200"))
    for one in listed["episodes"][:25]:
        await get("page", f"{API}/episodes/{one['id']}?key={one['key']}&tokens=true")
        await get("page", f"{API}/episodes/{one['id']}/comments?key={one['key']}")
    await get("metrics", "/metrics")
    asked = {"worker": "w", "names": ["judge"], "limit": 64, "seconds": 600.0, "singles": True}
    while leased := await get("judge's groups", f"{API}/groups/lease", method="POST", json=asked):
        for group in read_model(GroupLease, leased).groups:
            shown = force([of_episode(e) for e in group.episodes], 10**6)
            names = [e.episode.id for e in group.episodes]
            scan.look("judge's prompts", build(shown, names, "The rubric.", "group").messages)


def files(scan: Scan, root: Path) -> None:
    """Bytes of all files, calls of the spool as their format reads them, and rows of the store."""
    for path in (p for p in root.rglob("*") if p.is_file()):
        scan.look("files", str(path.name))
        scan.look("files", path.read_bytes())
    segments = [path for found in list_segments(root / "spool").values() for _, path in found]
    for frame in (frame for path in segments for frame in read_segment(path)):
        scan.look("spool", frame.head)
        if "op" not in frame.head:
            head, read = parsed(frame)
            scan.look("spool", [read.messages, read.tools, read.sampling, [c.message for c in read.choices]])
    with duckdb.connect(str(root / "slipstream.duckdb"), read_only=True) as store:
        for (table,) in store.execute("select table_name from duckdb_tables()").fetchall():
            scan.look("store", store.execute(f'select * from "{table}"').fetchall())
