"""The control API's routes that a judge uses, in memory: what stands at the other end of the network in the worker's tests."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from slipstream.contract import API, Group


@dataclass
class Waiting:
    group: Group
    lease: str | None = None
    until: float = 0.0
    not_before: float = 0.0
    _text: str = ""

    def text(self) -> str:
        if not self._text or self.group.attempts:
            self._text = self.group.model_dump_json()
        return self._text


@dataclass
class FakeControl:
    max_attempts: int = 4
    waiting: dict[str, Waiting] = field(default_factory=dict)
    parked: dict[str, Group] = field(default_factory=dict)
    scored: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    leases: list[dict[str, Any]] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    episodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    broken: int = 0
    """How many of the next score posts are answered 503."""
    queries: list[dict[str, str]] = field(default_factory=list)

    def add(self, *groups: Group) -> None:
        for group in groups:
            self.waiting[group.id] = Waiting(group)
            self.waiting[group.id].text()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.add_routes(
            [
                web.post(f"{API}/groups/lease", self.lease),
                web.post(API + "/groups/{id}/scores", self.scores),
                web.get(API + "/judge/cache/{key}", self.cache_get),
                web.put(API + "/judge/cache/{key}", self.cache_put),
                web.post(f"{API}/training/events", self.event),
                web.post(f"{API}/leases/release", self.release),
                web.get(f"{API}/episodes", self.list),
                web.get(API + "/episodes/{id}", self.episode),
                web.post(API + "/episodes/{id}/rewards", self.reward),
            ]
        )
        return app

    async def lease(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self.leases.append(wanted)
        now = time.time()
        free = [w for w in self.waiting.values() if w.until < now and w.not_before < now][: wanted["limit"]]
        if not free:
            return web.Response(status=204)
        lease, until = uuid.uuid4().hex, now + wanted["seconds"]
        for w in free:
            w.lease, w.until = lease, until
        groups = ",".join(w.text() for w in free)
        return web.Response(
            text=f'{{"lease": "{lease}", "until": {until}, "groups": [{groups}]}}', content_type="application/json"
        )

    async def scores(self, request: web.Request) -> web.Response:
        name, body = request.match_info["id"], await request.json()
        if self.broken:
            self.broken -= 1
            return _error(503, "the store is away")
        self.posts.append((name, body))
        waiting = self.waiting.get(name)
        if waiting is None or waiting.lease != body["lease"]:
            return _error(409, "the lease has run out")
        if body["failed"] is None:
            self.scored[name] = body["scores"]
            del self.waiting[name]
            return web.json_response({})
        waiting.until = 0.0
        waiting.not_before = time.time() + (body["retry_after"] or 0.0)
        if body["retry_after"] is None:
            waiting.group.attempts += 1
            if waiting.group.attempts >= self.max_attempts:
                self.parked[name] = self.waiting.pop(name).group
        return web.json_response({})

    async def cache_get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if key not in self.cache:
            return _error(404, "not there")
        return web.json_response({"key": key, "value": self.cache[key], "at": 0.0})

    async def cache_put(self, request: web.Request) -> web.Response:
        self.cache[request.match_info["key"]] = (await request.json())["value"]
        return web.json_response({})

    async def event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json())
        return web.json_response({})

    async def release(self, request: web.Request) -> web.Response:
        self.released.append((await request.json())["worker"])
        for w in self.waiting.values():
            w.until = 0.0
        return web.json_response({"released": 1})

    async def list(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        names = ("call_list", "rewards", "advantage", "batches", "trained_adapters", "lineage")
        all_ = [{k: v for k, v in e.items() if k not in names} for e in self.episodes.values()]
        start = int(request.query.get("cursor", 0))
        more = str(start + 3) if start + 3 < len(all_) else None
        return web.json_response({"episodes": all_[start : start + 3], "next": more})

    async def episode(self, request: web.Request) -> web.Response:
        return web.json_response(self.episodes[request.match_info["id"]])

    async def reward(self, request: web.Request) -> web.Response:
        self.rewards.append((request.match_info["id"], await request.json()))
        return web.json_response({"stored": True, "known": True})


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"type": "error", "message": message, "field": None, "fix": None}}, status=status
    )
